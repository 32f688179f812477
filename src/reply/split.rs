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
const TEXT_MAX_UNITS: usize = 4096;

/// Longest HTML of a part. Telegram names no number, but cuts raw text off at some 35,000 bytes and then finds tags
/// unclosed; short quoted lines full of links get there long before they show 4096 units. We stay well below.
const HTML_MAX_BYTES: usize = 16 * 1024;

/// Most tags in a part: Telegram drops formatting beyond 100 entities without a word.
const TAGS_MAX: usize = 100;

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads HTML as strictly as Telegram does, or more: gives the text and the number of tags, or what is wrong.
    fn read(html: &str) -> Result<(String, usize), String> {
        let (mut text, mut open, mut tags, mut rest) = (String::new(), Vec::<&str>::new(), 0, html);
        let mut just_opened = false;
        while let Some(c) = rest.chars().next() {
            let in_code = open.iter().any(|name| matches!(*name, "code" | "pre"));
            if let Some(name) = rest.strip_prefix("</") {
                let name = name.split_once('>').ok_or("tag without end")?.0;
                let was = open.pop().ok_or("closed but never opened")?;
                if name != was || just_opened {
                    return Err(format!("<{was}> ends as </{name}>, empty: {just_opened}"));
                }
                rest = &rest[name.len() + 3..];
            } else if c == '<' {
                let tag = rest[1..].split_once('>').ok_or("tag without end")?.0;
                let (name, attribute) = tag.split_once(' ').unwrap_or((tag, ""));
                let value = |key: &str| attribute.strip_prefix(key).and_then(|value| value.strip_suffix('"'));
                let is_allowed = match name {
                    "b" | "i" | "s" | "pre" => !in_code && attribute.is_empty(),
                    "code" if open.last() == Some(&"pre") && just_opened => value("class=\"language-").is_some(),
                    "code" => !in_code && !open.contains(&"a") && attribute.is_empty(),
                    "blockquote" => open.is_empty() && attribute.is_empty(),
                    "a" => !in_code && value("href=\"").is_some_and(|url| !url.is_empty() && !url.contains('"')),
                    _ => false,
                };
                let in_emphasis = matches!(name, "pre" | "code") && open.iter().any(|name| "bis".contains(name));
                if !is_allowed || in_emphasis || open.contains(&name) {
                    return Err(format!("<{tag}> within {open:?}"));
                }
                tags += usize::from(open.last() != Some(&"pre"));
                open.push(name);
                just_opened = true;
                rest = &rest[tag.len() + 2..];
                continue;
            } else if c == '&' {
                let name = rest.split_once(';').ok_or("& without end")?.0;
                text.push(match name {
                    "&amp" => '&',
                    "&lt" => '<',
                    "&gt" => '>',
                    "&quot" => '"',
                    _ => return Err(format!("{name};")),
                });
                rest = &rest[name.len() + 1..];
            } else if c == '>' || c.is_control() && c != '\n' && c != '\t' {
                return Err(format!("{c:?} in text"));
            } else {
                text.push(c);
                rest = &rest[c.len_utf8()..];
            }
            just_opened = false;
        }
        if open.is_empty() { Ok((text, tags)) } else { Err(format!("open at the end: {open:?}")) }
    }

    /// All that must hold of the parts of any reply: each is valid, and together they say what the reply says.
    fn checked(markdown: &str) -> Vec<Part> {
        let whole = render::telegram(markdown);
        let mut rest = whole.text();
        let parts = telegram_parts(markdown);
        for part in &parts {
            let (text, tags) = read(&part.html).unwrap_or_else(|fault| panic!("{fault} in {}", part.html));
            assert_eq!(text, part.plain);
            assert!(text.encode_utf16().count() <= 4096 && part.html.len() <= 16_384 && tags <= 100);
            assert!(text.contains(|c: char| !c.is_whitespace() && c != '\u{200b}' && c != '\u{200d}'), "{text:?}");
            let from_first = text.trim_start_matches(is_blank);
            rest = rest.trim_start_matches(is_blank).strip_prefix(from_first).unwrap_or_else(|| panic!("lost: {text}"));
        }
        assert!(rest.chars().all(is_blank), "lost: {rest}");
        parts
    }

    #[test]
    fn b001_quoted_mail_headers_are_escaped() {
        let parts = checked("From: Ann <ann@example.org> & <b>bold");
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].html, "From: Ann &lt;ann@example.org&gt; &amp; &lt;b&gt;bold");
        assert_eq!(parts[0].plain, "From: Ann <ann@example.org> & <b>bold");
    }

    #[test]
    fn b002_a_long_code_block_is_closed_and_reopened() {
        let lines: Vec<String> = (0..300).map(|n| format!("    if a{n} < b && c > d {{ \u{1f980}\t}}\n")).collect();
        let body = lines.concat();
        assert!(body.encode_utf16().count() > 8_000);
        let parts = checked(&format!("Before\n```rust\n{body}```\nafter"));
        assert!(parts.len() >= 3);
        for part in &parts {
            assert!(part.html.contains("<pre><code class=\"language-rust\">    if a"), "{}", part.html);
        }
        let joined: Vec<&str> = parts.iter().map(|part| part.plain.as_str()).collect();
        assert_eq!(joined.join("\n"), format!("Before\n\n{body}\nafter"));
    }

    #[test]
    fn b002_code_without_line_breaks_loses_nothing() {
        let body = "x  <&>".repeat(1_500);
        let parts = checked(&format!("```\n{body}\n```"));
        assert_eq!(parts.iter().map(|part| part.plain.as_str()).collect::<String>(), body);
    }

    #[test]
    fn b003_many_short_quotes_are_measured_in_bytes_too() {
        let line = |n| format!("> **{n}** [x](https://example.org/{}?a=1&b=2)\n", "path/".repeat(60));
        let parts = checked(&(0..1_500).map(line).collect::<String>());
        assert!(parts.len() > 15);
        assert!(parts.iter().all(|part| part.html.starts_with("<blockquote>") && part.html.ends_with("</blockquote>")));
        for n in 0..1_500 {
            let mark = format!("<b>{n}</b>");
            assert_eq!(parts.iter().filter(|part| part.html.contains(&mark)).count(), 1, "line {n}");
        }
    }

    #[test]
    fn an_answer_of_100_000_characters() {
        let piece = "## Part\n\nSome *words* with <&> and \u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{200d}\u{1f466}, \
            a [link](https://example.org/?a=<&b=2), `code<>`.\n\n- one\n  - two & **three**\n\n\
            ```c\nif (a < b && c > d) {}\n\n\n```\n\n> quoted \u{1f1e9}\u{1f1ea}\n\n";
        let parts = checked(&piece.repeat(100_000 / piece.chars().count() + 1));
        assert!((15..60).contains(&parts.len()), "{}", parts.len());
        assert_eq!(
            parts.iter().map(|part| part.html.matches("<pre>").count()).sum::<usize>(),
            100_000 / piece.chars().count() + 1
        );
    }

    #[test]
    fn cuts_are_made_where_a_reader_would() {
        let family = "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467}\u{200d}\u{1f466}";
        for (name, markdown, first_ends) in [
            ("a paragraph", format!("{}\n\n{}", "a. b\n".repeat(400), "c. d\n".repeat(700)), "a. b"),
            ("a line", format!("{}\n{}", "a. b ".repeat(500), "c. d ".repeat(500)), "a. b"),
            ("a sentence", format!("{}End. {}", "a b ".repeat(800), "c d ".repeat(800)), "End."),
            ("a word", "word ".repeat(2_000), " word"),
            ("a flag", "\u{1f1e9}\u{1f1ea}".repeat(3_000), "\u{1f1e9}\u{1f1ea}"),
            ("a family", format!("a{}", family.repeat(900)), family),
            ("a letter with its accents", "e\u{301}\u{302}".repeat(3_000), "e\u{301}\u{302}"),
            ("a full stop with an accent", "。\u{301}".repeat(3_000), "\u{301}"),
            ("one grapheme over the limit", format!("e{}", "\u{301}".repeat(9_000)), "\u{301}"),
        ] {
            let parts = checked(&markdown);
            assert!(parts.len() > 1, "{name}");
            assert!(parts[0].plain.ends_with(first_ends), "{name}: {:?}", &parts[0].plain.chars().last());
            assert!(
                name.starts_with("one") || parts.iter().all(|part| !part.plain.starts_with(['\u{200d}', '\u{301}']))
            );
        }
    }

    #[test]
    fn nothing_to_see_is_no_part() {
        for markdown in
            ["", " \n\t\n", "\u{0}\r\n", "\u{200b}\u{feff}", "#", ">", "```\n\n\n```", "&#32;&nbsp;", "[](<>)"]
        {
            assert_eq!(telegram_parts(markdown), [], "{markdown:?}");
        }
        let blanks = format!("a\n```\nb\n{}\nc\n```", "\n".repeat(9_000));
        assert!(checked(&blanks).iter().all(|part| !part.plain.trim().is_empty()));
    }

    #[test]
    fn odd_input_takes_linear_time() {
        for piece in [
            "[",
            "*",
            ">",
            "> ",
            "- ",
            "1. ",
            "`",
            "_a_",
            "![",
            "](",
            "<",
            "|",
            "~",
            "&",
            "\u{1f1e6}",
            "a\u{301}",
            "\\",
            "* a\n",
            "|a",
            "\n>",
            "![a](b",
            "[a](b)",
            "***a",
        ] {
            checked(&piece.repeat(100_000));
        }
        for (open, close) in [("![", "](u)"), ("![ ", " ](u)"), ("**a ", "**"), ("> - ", "")] {
            checked(&format!("{}x{}", open.repeat(20_000), close.repeat(20_000)));
        }
        checked(&"Words and **bold** ones, `code`, [a](https://example.org).\n".repeat(1_000_000 / 58));
    }

    fn fragment() -> impl Strategy<Value = String> {
        let fixed = prop::sample::select(vec![
            "\n",
            "\n\n",
            " ",
            "**",
            "*",
            "__",
            "~~",
            "`",
            "<&>",
            "\"",
            "> ",
            "\n> > ",
            "\n- ",
            "\n  - ",
            "\n1. ",
            "\n# ",
            "\n```rust\n",
            "\n```\n",
            "\n~~~\n",
            "[a **b**](https://example.org/?a=1&b=\"2\")",
            "[x](javascript:y)",
            "![i](https://example.org/i.png)",
            "<b>",
            "</blockquote>",
            "&amp;",
            "&#0;",
            "\n| a | b |\n|---|--:|\n| `c` | d |\n",
            "\n---\n",
            "\u{1f469}\u{200d}\u{1f469}\u{200d}\u{1f467}",
            "\u{1f1e9}\u{1f1ea}",
            "e\u{301}",
            "\u{200b}",
            "\u{7}",
            "[",
            "](",
            ")",
            "<ann@example.org>",
            "<https://example.org>",
            "\n    ",
            "\t",
            "- [x] ",
            "。",
        ]);
        prop_oneof![
            8 => fixed.prop_map(str::to_owned),
            2 => "[a-z<&]{1,12}[ .]",
            1 => (1..700_usize, "[a-z\u{e9}\u{1f980}&]").prop_map(|(count, piece)| piece.repeat(count)),
            1 => (1..90_usize, "[a-z&*]{1,8}[ \n]").prop_map(|(count, piece)| piece.repeat(count)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_mix_is_valid_and_whole(pieces in prop::collection::vec(fragment(), 0..120), times in 1..12_usize) {
            checked(&pieces.concat().repeat(times));
        }

        #[test]
        fn any_text_is_valid_and_whole(text in "(?s).{0,400}") {
            checked(&text);
        }
    }
}
