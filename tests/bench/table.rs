//! The table that comes out.

use std::fmt;
use std::time::Duration;

/// Figures in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    figure: String,
    got: String,
    aim: String,
    /// What was measured, by the aim: up to 1 it is met.
    ratio: Option<f64>,
}

impl Table {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A figure without an aim.
    pub(crate) fn tell(&mut self, figure: &str, got: impl fmt::Display) {
        self.0.push(Row { figure: figure.to_owned(), got: got.to_string(), aim: String::new(), ratio: None });
    }

    /// A figure with the most that it should be, both in `unit`.
    pub(crate) fn aim(&mut self, figure: &str, got: f64, most: f64, unit: &str) {
        self.0.push(Row {
            figure: figure.to_owned(),
            got: format!("{} {unit}", short(got)).trim_end().to_owned(),
            aim: format!("≤ {} {unit}", short(most)).trim_end().to_owned(),
            ratio: Some(got / most),
        });
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("| figure | got | aim | got / aim |\n|---|---|---|---|\n")?;
        for Row { figure, got, aim, ratio } in &self.0 {
            let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
            writeln!(f, "| {figure} | {got} | {aim} | {ratio} |")?;
        }
        Ok(())
    }
}

/// Three digits that count, and no decimals for whole numbers.
fn short(number: f64) -> String {
    match number {
        whole if whole.fract() == 0.0 => format!("{whole:.0}"),
        big if big >= 100.0 => format!("{big:.0}"),
        mid if mid >= 10.0 => format!("{mid:.1}"),
        small => format!("{small:.2}"),
    }
}

/// Milliseconds with their fraction.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `p50 1.23 ms, p99 4.56 ms`.
pub(crate) fn spread(times: &[Duration]) -> String {
    format!("p50 {} ms, p99 {} ms", short(ms(quantile(times, 0.5))), short(ms(quantile(times, 0.99))))
}

/// The time that a share of `times` stays below or at.
pub(crate) fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a share of a small count")]
    let at = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
    sorted[at]
}

pub(crate) fn median(times: &[Duration]) -> Duration {
    quantile(times, 0.5)
}
