//! Cuts a rendered reply into parts that the platform takes.
//!
//! ```text
//! Markdown ──render──▶ Rich ──cut──▶ stretch, stretch, … ──html──▶ Part, Part, …
//! ```
//!
//! A part is measured three ways at once, because each limit has refused or garbled messages on its own: what a reader
//! sees, the bytes of the request, the number of formatted stretches. Nothing is lost and nothing is doubled: the text
//! of all parts is the text of the reply but for blanks at the cuts.

use unicode_segmentation::GraphemeCursor;

use super::html::{Rich, Spot, escaped_bytes, is_blank};
use super::render;

/// Longest text of a part, in UTF-16 code units after the entities are parsed. Source: Telegram Bot API, `sendMessage`.
pub const TEXT_MAX_UNITS: usize = 4096;

/// Longest HTML of a part. Telegram names no number, but cuts raw text off at some 35,000 bytes and then finds tags
/// unclosed; short quoted lines full of links get there long before they show 4096 units. We stay well below.
pub const HTML_MAX_BYTES: usize = 16 * 1024;

/// Most tags in a part: Telegram drops formatting beyond 100 entities without a word.
pub const TAGS_MAX: usize = 100;

/// One part of a reply, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// For `parse_mode = HTML`.
    pub html: String,
    /// What a reader of `html` sees; sent once in its place, without a parse mode, when the formatting is refused.
    pub plain: String,
}

/// Renders a model's Markdown for Telegram, in parts to be sent in order.
///
/// Every part is valid on its own and within Telegram's limits. A reply that would show nothing gives no part.
/// Takes time linear in the length of `markdown`, however odd it is.
#[must_use]
pub fn telegram_parts(markdown: &str) -> Vec<Part> {
    let rich = render::telegram(markdown);
    let text = rich.text();
    let mut parts = Vec::new();
    let mut from = skip_blanks(&rich, 0);
    while from < text.len() {
        let cut = next_cut(&rich, from);
        let end = trim_end(&rich, from, cut.end);
        let plain = text.get(from..end).unwrap_or_default();
        // Only a code block of blanks can come to this; Telegram would refuse it.
        if !plain.chars().all(is_blank) {
            parts.push(Part { html: rich.html(from..end), plain: plain.to_owned() });
        }
        from = skip_blanks(&rich, cut.next);
    }
    parts
}

/// Where a part ends, and where the next one begins.
#[derive(Clone, Copy, Debug)]
struct Cut {
    end: usize,
    next: usize,
}

/// Kinds of places to cut at, best first.
#[derive(Clone, Copy, Debug)]
enum Place {
    Paragraph,
    BlankLineInCode,
    Line,
    Sentence,
    Word,
}

impl Place {
    const ALL: [Self; 5] = [Self::Paragraph, Self::BlankLineInCode, Self::Line, Self::Sentence, Self::Word];

    /// How full a part must be for this place to end it, in quarters. Not only for looks: it bounds how much text is
    /// walked again for the next part.
    fn least_quarters(self) -> usize {
        match self {
            Self::Paragraph => 1,
            Self::BlankLineInCode | Self::Line | Self::Sentence | Self::Word => 2,
        }
    }
}

/// Measures a part while it grows.
struct Meter {
    units: usize,
    bytes: usize,
    tags: usize,
    spot: Spot,
}

impl Meter {
    /// Takes `c` at `spot` if the part, with all tags closed, still fits.
    fn take(&mut self, rich: &Rich, spot: Spot, c: char) -> bool {
        if spot != self.spot {
            let (left, common, entered) =
                (rich.cost(self.spot), rich.cost(rich.common(self.spot, spot)), rich.cost(spot));
            self.bytes += left.close_bytes - common.close_bytes + entered.open_bytes - common.open_bytes;
            self.tags += entered.tags - common.tags;
            self.spot = spot;
        }
        self.units += c.len_utf16();
        self.bytes += escaped_bytes(c);
        self.units <= TEXT_MAX_UNITS
            && self.bytes + rich.cost(spot).close_bytes <= HTML_MAX_BYTES
            && self.tags <= TAGS_MAX
    }
}

/// Ends the part that begins at `from`: with the text, or at the best place among those that fit.
fn next_cut(rich: &Rich, from: usize) -> Cut {
    let text = rich.text();
    let rest = text.get(from..).unwrap_or_default();
    let mut meter = Meter { units: 0, bytes: 0, tags: 0, spot: Spot::ROOT };
    let mut places: [Option<Cut>; Place::ALL.len()] = [None; _];
    let mut runs = rich.runs().iter().skip(rich.run_at(from)).peekable();
    let mut before = None;
    let mut chars = rest.char_indices().peekable();
    while let Some((offset, c)) = chars.next() {
        let at = from + offset;
        while runs.next_if(|run| run.end <= at).is_some() {}
        let spot = runs.peek().map_or(Spot::ROOT, |run| run.spot);
        let after = chars.peek().map(|(_, after)| *after);
        if let Some(before) = before
            && let Some(place) = place(rich.is_pre(spot), before, c, after)
        {
            // In code the line break at the cut is all that may go; elsewhere blanks are skipped anyway.
            let next = if rich.is_pre(spot) && c == '\n' { at + 1 } else { at };
            places[place as usize] = Some(Cut { end: at, next });
        }
        if !meter.take(rich, spot, c) {
            // At least one character a part: no limit is so low, but a loop without end would be the worst answer.
            return best_cut(rest, from, at.max(from + if offset == 0 { c.len_utf8() } else { 0 }), &places);
        }
        before = Some(c);
    }
    Cut { end: text.len(), next: text.len() }
}

/// What kind of place it is between `before` and `c`, if one may cut there with good looks.
fn place(in_code: bool, before: char, c: char, after: Option<char>) -> Option<Place> {
    match c {
        '\n' if in_code && before == '\n' => Some(Place::BlankLineInCode),
        '\n' if !in_code && (before == '\n' || after == Some('\n')) => Some(Place::Paragraph),
        '\n' => Some(Place::Line),
        c if c.is_whitespace() && !in_code && matches!(before, '.' | '!' | '?' | '…') => Some(Place::Sentence),
        c if c.is_whitespace() => Some(Place::Word),
        _ if matches!(before, '。' | '！' | '？') => Some(Place::Sentence),
        _ => None,
    }
}

/// The best place up to `limit`, else the last boundary between graphemes, else (one grapheme fills the part) `limit`.
fn best_cut(rest: &str, from: usize, limit: usize, places: &[Option<Cut>]) -> Cut {
    let mut cursor = GraphemeCursor::new(0, rest.len(), true);
    // `rest` is whole and starts at a boundary, so the cursor never asks for more context.
    let mut is_boundary = |at: usize| {
        cursor.set_cursor(at - from);
        cursor.is_boundary(rest, 0).unwrap_or(true)
    };
    for (kind, place) in Place::ALL.iter().zip(places) {
        if let Some(cut) = place
            && (cut.end - from) * 4 >= (limit - from) * kind.least_quarters()
            && is_boundary(cut.end)
        {
            return *cut;
        }
    }
    let end = if is_boundary(limit) {
        limit
    } else {
        match cursor.prev_boundary(rest, 0) {
            Ok(Some(offset)) if offset > 0 => from + offset,
            _ => limit,
        }
    };
    Cut { end, next: end }
}

/// The first byte from `at` on that is worth sending: blanks in code are content, others are not.
fn skip_blanks(rich: &Rich, at: usize) -> usize {
    let mut at = at;
    for run in rich.runs().iter().skip(rich.run_at(at)) {
        let run_text = rich.text().get(at..run.end).unwrap_or_default();
        let kept = if rich.is_pre(run.spot) { run_text } else { run_text.trim_start() };
        at = run.end - kept.len();
        if !kept.is_empty() {
            break;
        }
    }
    at
}

/// The end of what is worth sending of `from..end`.
fn trim_end(rich: &Rich, from: usize, end: usize) -> usize {
    let mut end = end;
    while let Some(c) = rich.text().get(from..end).and_then(|text| text.chars().next_back()) {
        let at = end - c.len_utf8();
        let in_code = rich.runs().get(rich.run_at(at)).is_some_and(|run| rich.is_pre(run.spot));
        if in_code || !c.is_whitespace() {
            break;
        }
        end = at;
    }
    end
}

