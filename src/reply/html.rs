//! Formatted text as a value, and the one place that writes it as Telegram's HTML.
//!
//! ```text
//! text   Look at the docs now          what a reader sees, nothing else
//! runs   ──────┬──▶ bold               consecutive stretches of the text, each at one spot
//!              └──▶ bold ▸ link        spots: a tree of tags, so overlapping tags cannot be said
//! ```
//!
//! The text is kept apart from its tags so that any stretch of it can be written on its own: tags that are open where
//! it begins are opened again, tags that are open where it ends are closed. That is all that splitting needs.
//!
//! Source: Telegram Bot API, "HTML style" (which tags may stand in which).

use std::borrow::Cow;
use std::ops::Range;

/// A tag that Telegram takes. There is no underline: Markdown has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// Not a tag: the text outside all tags.
    Root,
    Bold,
    Italic,
    Strike,
    Code,
    /// A code block, with its language.
    Pre(Option<String>),
    /// A link, with its target.
    Link(String),
    Quote,
}

impl Tag {
    fn open(&self) -> Cow<'static, str> {
        match self {
            Self::Root => "".into(),
            Self::Bold => "<b>".into(),
            Self::Italic => "<i>".into(),
            Self::Strike => "<s>".into(),
            Self::Code => "<code>".into(),
            Self::Pre(None) => "<pre>".into(),
            Self::Pre(Some(language)) => {
                let mut open = String::from("<pre><code class=\"language-");
                escape(language, &mut open);
                (open + "\">").into()
            }
            Self::Link(url) => {
                let mut open = String::from("<a href=\"");
                escape(url, &mut open);
                (open + "\">").into()
            }
            Self::Quote => "<blockquote>".into(),
        }
    }

    fn close(&self) -> &'static str {
        match self {
            Self::Root => "",
            Self::Bold => "</b>",
            Self::Italic => "</i>",
            Self::Strike => "</s>",
            Self::Code => "</code>",
            Self::Pre(None) => "</pre>",
            Self::Pre(Some(_)) => "</code></pre>",
            Self::Link(_) => "</a>",
            Self::Quote => "</blockquote>",
        }
    }

    fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// A place in the tree of tags: one tag of the text, inside those above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot(usize);

impl Spot {
    /// Outside all tags.
    pub(super) const ROOT: Self = Self(0);
}

#[derive(Debug)]
struct Node {
    parent: Spot,
    tag: Tag,
    open: Cow<'static, str>,
    cost: Cost,
}

/// What it takes to stand at a spot, from the root: tags, and bytes to open and to close them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) tags: usize,
    pub(super) open_bytes: usize,
    pub(super) close_bytes: usize,
}

/// A stretch of text at one spot; it begins where the one before it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) end: usize,
    pub(super) spot: Spot,
}

/// Text with formatting.
#[derive(Debug)]
pub(super) struct Rich {
    text: String,
    runs: Vec<Run>,
    nodes: Vec<Node>,
}

impl Rich {
    pub(super) fn new() -> Self {
        let root = Node { parent: Spot::ROOT, tag: Tag::Root, open: "".into(), cost: Cost::default() };
        Self { text: String::new(), runs: Vec::new(), nodes: vec![root] }
    }

    /// What a reader sees.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The run that holds the byte at `at`.
    pub(super) fn run_at(&self, at: usize) -> usize {
        self.runs.partition_point(|run| run.end <= at)
    }

    /// Where the text ends so far.
    pub(super) fn last(&self) -> Spot {
        self.runs.last().map_or(Spot::ROOT, |run| run.spot)
    }

    pub(super) fn cost(&self, spot: Spot) -> Cost {
        self.node(spot).cost
    }

    pub(super) fn is_pre(&self, spot: Spot) -> bool {
        matches!(self.node(spot).tag, Tag::Pre(_))
    }

    /// The spot of a new `tag` at `at`, or as near to it as Telegram allows: a tag within its like is left out, code
    /// stands outside emphasis, and nothing stands in code.
    pub(super) fn child(&mut self, at: Spot, tag: Tag) -> Spot {
        let mut parent = at;
        let mut above = at;
        while above != Spot::ROOT {
            let node = self.node(above);
            let in_code = matches!(node.tag, Tag::Code | Tag::Pre(_));
            let code_in_link = matches!((&node.tag, &tag), (Tag::Link(_), Tag::Code));
            if in_code || code_in_link || node.tag.same_kind(&tag) {
                return at;
            }
            let code_in_emphasis = matches!(tag, Tag::Code | Tag::Pre(_)) && node.tag != Tag::Quote;
            above = node.parent;
            if code_in_emphasis {
                parent = above;
            }
        }
        let open = tag.open();
        let base = self.cost(parent);
        let cost = Cost {
            tags: base.tags + 1,
            open_bytes: base.open_bytes + open.len(),
            close_bytes: base.close_bytes + tag.close().len(),
        };
        self.nodes.push(Node { parent, tag, open, cost });
        Spot(self.nodes.len() - 1)
    }

    /// Adds text at `spot`. Control characters, which Telegram drops or turns into blanks, stay out.
    pub(super) fn push(&mut self, spot: Spot, text: &str) {
        let before = self.text.len();
        if text.contains(is_unwanted) {
            self.text.extend(text.chars().filter(|c| !is_unwanted(*c)));
        } else {
            self.text.push_str(text);
        }
        let end = self.text.len();
        match self.runs.last_mut() {
            _ if end == before => {}
            Some(run) if run.spot == spot => run.end = end,
            _ => self.runs.push(Run { end, spot }),
        }
    }

    /// The innermost spot that holds both.
    pub(super) fn common(&self, a: Spot, b: Spot) -> Spot {
        let (mut a, mut b) = (a, b);
        while a != b {
            // The deeper one climbs; depth is bounded by the number of kinds, so this is a handful of steps.
            if self.cost(a).tags >= self.cost(b).tags {
                a = self.node(a).parent;
            } else {
                b = self.node(b).parent;
            }
        }
        a
    }

    /// A stretch of the text as HTML that stands on its own.
    pub(super) fn html(&self, range: Range<usize>) -> String {
        let mut out = String::with_capacity(range.len() + range.len() / 4);
        let mut spot = Spot::ROOT;
        let mut at = range.start;
        for run in self.runs.iter().skip(self.run_at(at)) {
            if at >= range.end {
                break;
            }
            let end = run.end.min(range.end);
            self.go(spot, run.spot, &mut out);
            escape(self.text.get(at..end).unwrap_or_default(), &mut out);
            (spot, at) = (run.spot, end);
        }
        self.go(spot, Spot::ROOT, &mut out);
        out
    }

    /// Writes the tags between two spots: those only the first is in are closed, those only the second is in opened.
    fn go(&self, from: Spot, to: Spot, out: &mut String) {
        let common = self.common(from, to);
        let mut above = from;
        while above != common {
            out.push_str(self.node(above).tag.close());
            above = self.node(above).parent;
        }
        let mut opened = Vec::new();
        let mut above = to;
        while above != common {
            opened.push(above);
            above = self.node(above).parent;
        }
        for spot in opened.into_iter().rev() {
            out.push_str(&self.node(spot).open);
        }
    }

    fn node(&self, spot: Spot) -> &Node {
        &self.nodes[spot.0] // a spot is made by `child` only, and nodes are never taken away
    }
}

/// Control characters other than line break and tab.
pub(super) fn is_unwanted(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// Shows as nothing: what Telegram counts as empty when it refuses a text for being empty.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c, '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
            | '\u{2800}' | '\u{feff}' | '\u{fffc}' | '\u{e0000}'..='\u{e007f}')
}

/// How many bytes a character takes in escaped text.
pub(super) fn escaped_bytes(c: char) -> usize {
    match c {
        '&' => 5,
        '<' | '>' => 4,
        '"' => 6,
        c => c.len_utf8(),
    }
}

/// Escapes for text and attributes alike. Telegram knows these four names and no other.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stand_only_where_telegram_takes_them() {
        use Tag::*;
        let url = || Link("https://a.example/?x=1&y=\"".into());
        for (name, tags, expected) in [
            ("emphasis nests", vec![Bold, Italic, Strike], "<b><i><s>x</s></i></b>"),
            ("a tag in its like is left out", vec![Bold, Italic, Bold], "<b><i>x</i></b>"),
            ("code leaves emphasis", vec![Quote, Bold, Code], "<blockquote><code>x</code></blockquote>"),
            ("a link keeps out code", vec![url(), Code], "<a href=\"https://a.example/?x=1&amp;y=&quot;\">x</a>"),
            ("nothing in code", vec![Code, Bold], "<code>x</code>"),
            ("nothing in a block", vec![Pre(None), Bold], "<pre>x</pre>"),
            ("one quote", vec![Quote, Quote], "<blockquote>x</blockquote>"),
            ("a language", vec![Pre(Some("rust".into()))], "<pre><code class=\"language-rust\">x</code></pre>"),
        ] {
            let mut rich = Rich::new();
            let spot = tags.into_iter().fold(Spot::ROOT, |at, tag| rich.child(at, tag));
            rich.push(spot, "x\u{7}\0");
            assert_eq!(rich.html(0..1), expected, "{name}");
            assert_eq!(rich.cost(spot).open_bytes + rich.cost(spot).close_bytes + 1, expected.len(), "{name}");
        }
    }
}
