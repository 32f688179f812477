//! Turns a model's Markdown into formatted text that Telegram takes.
//!
//! ```text
//! Markdown ──pulldown-cmark──▶ events ──Pen──▶ Rich (text, runs, tags)
//! ```
//!
//! Markdown has more shapes than Telegram has tags; the rest is said in words: headings are bold lines, lists are
//! bullets and numbers with indentation, tables are aligned code blocks, images are their description and address, HTML
//! is text. Nothing a reader could have seen is dropped, and nothing makes a client fetch anything.
//!
//! One pass over flat events, no recursion: 100,000 nested quotes cost as much as 100,000 words.

use std::borrow::Cow;
use std::collections::HashSet;

use pulldown_cmark::{Alignment, CodeBlockKind, Event, LinkType, Options, Parser, Tag as Markdown, TagEnd};
use unicode_segmentation::UnicodeSegmentation;

use super::html::{Rich, Spot, Tag, is_blank, is_unwanted};

/// Indentation stops growing here, however deep lists and quotes nest.
const INDENT_MAX_BYTES: usize = 16;

/// A longer address is shown as text: text can be split, a tag cannot.
const HREF_MAX_BYTES: usize = 2048;

/// Cells are padded up to this width; a phone shows some 40 columns.
const PAD_MAX_COLUMNS: usize = 32;

/// Renders `markdown`.
pub(super) fn telegram(markdown: &str) -> Rich {
    let source = clean(markdown);
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut pen = Pen::new();
    let mut parser = Parser::new_ext(&source, options);
    let mut linked = HashSet::new();
    for event in parser.by_ref() {
        if let Event::Start(Markdown::Link { dest_url, .. } | Markdown::Image { dest_url, .. }) = &event {
            linked.insert(dest_url.clone());
        }
        match event {
            Event::Start(tag) => pen.start(tag),
            Event::End(tag) => pen.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => pen.words(&text),
            Event::Code(text) => pen.code(&text),
            Event::SoftBreak | Event::HardBreak => pen.words("\n"),
            Event::Rule => {
                pen.part(2);
                pen.words("———");
                pen.part(2);
            }
            Event::TaskListMarker(done) => pen.task(done),
            // Extensions that are off.
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => pen.words(&text),
        }
    }
    // Markdown hides `[1]: https://…`; where no link used it, it is a list of sources that a reader would miss.
    let mut unused: Vec<_> = parser.reference_definitions().iter().map(|(_, definition)| definition).collect();
    unused.retain(|definition| !linked.contains(&definition.dest));
    unused.sort_by_key(|definition| definition.span.start);
    pen.part(2);
    for definition in unused {
        pen.words(source.get(definition.span.clone()).unwrap_or_default().trim());
        pen.part(1);
    }
    pen.rich
}

/// One kind of line break, and no control characters: the parser would keep them, Telegram would not.
fn clean(markdown: &str) -> Cow<'_, str> {
    if markdown.contains(is_unwanted) {
        markdown.replace("\r\n", "\n").replace('\r', "\n").replace(is_unwanted, "").into()
    } else {
        markdown.into()
    }
}

/// A link or image that is open.
struct Target {
    /// The address as a reader may see it.
    shown: String,
    /// The address behind the text, if the text became a link.
    href: Option<String>,
    kind: LinkType,
    /// Where its text begins.
    from: usize,
}

/// Writes events down.
struct Pen {
    rich: Rich,
    /// The spots that are open, innermost last.
    open: Vec<Spot>,
    /// The spot of the present block: in a quote or not.
    block: Spot,
    /// Line breaks owed before the next words.
    owed: usize,
    at_line_start: bool,
    /// A quote has begun and has no words yet: what comes first in it owes no more than the quote does.
    is_fresh: bool,
    /// Indentation of each open list item and nested quote, innermost last.
    indents: Vec<String>,
    /// Indentation and marker of an item that has no words yet.
    lead: Option<String>,
    /// The next number of each open list; `None` for bullets.
    lists: Vec<Option<u64>>,
    targets: Vec<Target>,
    /// Language and content of a code block that is open.
    code: Option<(Option<String>, String)>,
    table: Option<Table>,
}

impl Pen {
    fn new() -> Self {
        Self {
            rich: Rich::new(),
            open: Vec::new(),
            block: Spot::ROOT,
            owed: 0,
            at_line_start: true,
            is_fresh: false,
            indents: Vec::new(),
            lead: None,
            lists: Vec::new(),
            targets: Vec::new(),
            code: None,
            table: None,
        }
    }

    fn start(&mut self, tag: Markdown<'_>) {
        match tag {
            Markdown::Paragraph | Markdown::HtmlBlock => self.part(2),
            Markdown::Heading { .. } => {
                self.part(2);
                self.enter(Tag::Bold);
            }
            Markdown::BlockQuote(_) => self.start_quote(),
            Markdown::CodeBlock(kind) => self.code = Some((language(&kind), String::new())),
            Markdown::List(first) => {
                self.part(self.block_gap());
                self.lists.push(first);
            }
            Markdown::Item => self.start_item(),
            Markdown::Table(aligns) => self.table = Some(Table { aligns, rows: Vec::new() }),
            Markdown::TableHead | Markdown::TableRow => self.table.iter_mut().for_each(|t| t.rows.push(Vec::new())),
            Markdown::TableCell => {
                self.table.iter_mut().filter_map(|t| t.rows.last_mut()).for_each(|row| row.push(String::new()));
            }
            Markdown::Emphasis => self.enter(Tag::Italic),
            Markdown::Strong => self.enter(Tag::Bold),
            Markdown::Strikethrough => self.enter(Tag::Strike),
            Markdown::Link { link_type, dest_url, .. } => self.start_target(link_type, &dest_url, true),
            Markdown::Image { link_type, dest_url, .. } => self.start_target(link_type, &dest_url, false),
            // Extensions that are off.
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.part(2),
            TagEnd::Heading(_) => {
                self.open.pop();
                self.part(2);
            }
            TagEnd::BlockQuote(_) => {
                self.is_fresh = false;
                self.open.pop();
                self.indents.pop();
                self.block = self.spot();
                self.end_blocks();
            }
            TagEnd::CodeBlock => {
                if let Some((language, content)) = self.code.take() {
                    self.verbatim(language, content.strip_suffix('\n').unwrap_or(&content));
                }
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.end_blocks();
            }
            TagEnd::Item => {
                self.write_lead();
                self.indents.pop();
                self.part(1);
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.verbatim(None, &table.layout());
                }
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.open.pop();
            }
            TagEnd::Link | TagEnd::Image => self.end_target(),
            _ => {}
        }
    }

    /// Words, with the line breaks they hold.
    fn words(&mut self, text: &str) {
        if let Some((_, content)) = &mut self.code {
            content.push_str(text);
        } else if let Some(cell) = self.table.as_mut().and_then(Table::cell) {
            cell.push_str(&text.replace('\n', " "));
        } else {
            for (count, line) in text.split('\n').enumerate() {
                if count > 0 {
                    self.owed = (self.owed + 1).min(2);
                }
                if !line.is_empty() {
                    self.begin();
                    self.rich.push(self.spot(), line);
                }
            }
        }
    }

    /// A code span.
    fn code(&mut self, text: &str) {
        if self.table.is_some() || text.chars().all(is_blank) {
            return self.words(text);
        }
        self.begin();
        let spot = self.rich.child(self.spot(), Tag::Code);
        self.rich.push(spot, text);
    }

    /// A code block.
    fn verbatim(&mut self, language: Option<String>, content: &str) {
        if content.chars().all(is_blank) {
            return;
        }
        // On its own lines even at the start of an item, and never indented: the block is what one copies.
        self.write_lead();
        self.part(self.block_gap());
        self.break_lines();
        let spot = self.rich.child(self.block, Tag::Pre(language));
        self.rich.push(spot, content);
        self.at_line_start = false;
        self.part(self.block_gap());
    }

    /// Owes at least `breaks` line breaks, unless a list marker or a quote waits for its first words.
    fn part(&mut self, breaks: usize) {
        if self.lead.is_none() && !self.is_fresh {
            self.owed = self.owed.max(breaks);
        }
    }

    /// After a quote or list the gap is that of what it stands in, whatever the last block in it asked for.
    fn end_blocks(&mut self) {
        self.part(self.block_gap());
        self.owed = self.owed.min(self.block_gap());
    }

    /// Line breaks around a block: a blank line, but none within a list.
    fn block_gap(&self) -> usize {
        if self.lists.is_empty() { 2 } else { 1 }
    }

    fn spot(&self) -> Spot {
        self.open.last().copied().unwrap_or(Spot::ROOT)
    }

    fn enter(&mut self, tag: Tag) {
        let spot = self.rich.child(self.spot(), tag);
        self.open.push(spot);
    }

    /// Writes the line breaks that are owed.
    fn break_lines(&mut self) {
        if self.owed > 0 && !self.rich.text().is_empty() {
            // Within what holds both lines, so that a quote of many paragraphs stays one quote.
            let spot = self.rich.common(self.rich.last(), self.spot());
            self.rich.push(spot, if self.owed > 1 { "\n\n" } else { "\n" });
            self.at_line_start = true;
        }
        self.owed = 0;
        self.is_fresh = false;
    }

    /// Writes all that stands before words: line breaks, indentation, marker.
    fn begin(&mut self) {
        self.break_lines();
        let lead = match self.lead.take() {
            None if self.at_line_start => self.indents.last().cloned(),
            lead => lead,
        };
        if let Some(lead) = lead {
            let common = self.rich.common(self.rich.last(), self.spot());
            let spot = if common == Spot::ROOT { self.block } else { common };
            self.rich.push(spot, &lead);
        }
        self.at_line_start = false;
    }

    fn write_lead(&mut self) {
        if self.lead.is_some() {
            self.begin();
        }
    }

    /// Indents what follows by `more` than what surrounds it.
    fn indent(&mut self, more: &str) {
        let mut indent = self.indents.last().cloned().unwrap_or_default();
        if indent.len() < INDENT_MAX_BYTES {
            indent.push_str(more);
        }
        self.indents.push(indent);
    }

    fn start_quote(&mut self) {
        self.write_lead();
        self.part(self.block_gap());
        let spot = self.rich.child(self.spot(), Tag::Quote);
        if self.spot() == spot {
            // Telegram has no quote in a quote: the inner one is marked as people do in mail.
            self.indent("> ");
        } else {
            self.indents.push(String::new());
        }
        self.open.push(spot);
        self.block = spot;
        self.is_fresh = true;
    }

    fn start_item(&mut self) {
        // An item that begins with a list shares its line with it: `• 1. word`.
        let mut lead = String::new();
        if self.lead.is_some() {
            self.begin();
        } else {
            self.part(1);
            lead.extend(self.indents.last().map(String::as_str));
        }
        match self.lists.last_mut() {
            Some(Some(number)) => {
                lead.push_str(&format!("{number}. "));
                *number = number.saturating_add(1);
                self.indent("   ");
            }
            _ => {
                lead.push_str("• ");
                self.indent("  ");
            }
        }
        self.lead = Some(lead);
    }

    fn task(&mut self, done: bool) {
        if let Some(lead) = &mut self.lead {
            if lead.ends_with("• ") {
                lead.truncate(lead.len() - "• ".len());
            }
            lead.push_str(if done { "☑ " } else { "☐ " });
        }
    }

    fn start_target(&mut self, kind: LinkType, url: &str, is_link: bool) {
        let mut href = None;
        if self.table.is_none() {
            self.begin();
            href = Some(url).filter(|url| is_link && kind != LinkType::Email && telegram_links(url)).map(str::to_owned);
        }
        if kind == LinkType::Email {
            self.words("<"); // as it was written: `Ann <ann@example.org>` is no link to its author
        }
        match href.clone() {
            Some(url) => self.enter(Tag::Link(url)),
            None => self.open.push(self.spot()),
        }
        let from = self.written().len();
        self.targets.push(Target { shown: shown(url), href, kind, from });
    }

    fn end_target(&mut self) {
        let Some(target) = self.targets.pop() else { return };
        let text = self.written().get(target.from..).unwrap_or_default();
        // No address is that long, and images nest: trimming the same blanks on every level would be quadratic.
        let text = if text.len() <= HREF_MAX_BYTES { text.trim() } else { text };
        let is_empty = text.is_empty();
        let says_it_all = target.kind == LinkType::Email
            || text == target.shown
            || target.href.as_deref().is_some_and(|href| !is_empty && !misleads(text, href));
        if is_empty {
            self.words(&target.shown);
        }
        self.open.pop();
        if target.kind == LinkType::Email {
            self.words(">");
        } else if !is_empty && !says_it_all && !target.shown.is_empty() {
            self.words(&format!(" ({})", target.shown));
        }
    }

    /// What has been written where words go now.
    fn written(&self) -> &str {
        match &self.table {
            Some(table) => table.rows.last().and_then(|row| row.last()).map_or("", String::as_str),
            None => self.rich.text(),
        }
    }
}

/// The language of a fence, if its name is one that a highlighter could know.
fn language(kind: &CodeBlockKind<'_>) -> Option<String> {
    let CodeBlockKind::Fenced(info) = kind else { return None };
    let name = info.split([' ', '\t', ',', '{']).next().unwrap_or_default();
    let is_sane = (1..=32).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '#' | '-' | '_' | '.'));
    is_sane.then(|| name.to_owned())
}

/// Telegram makes this a link. What it does not, `mailto:` and hosts without a dot among them, it drops without a word,
/// so we show it. Source: tdlib, `LinkManager::check_link_impl`.
fn telegram_links(url: &str) -> bool {
    if url.len() > HREF_MAX_BYTES || url.contains(|c: char| is_blank(c) || is_unwanted(c)) {
        return false;
    }
    let Some((scheme, rest)) = url.split_once(':') else { return false };
    if scheme.eq_ignore_ascii_case("tg") {
        let host = rest.trim_start_matches('/').split(['/', '?', '#']).next().unwrap_or_default();
        return !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    }
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let host = host(url);
    is_web && rest.starts_with("//") && (host.contains('.') || host.starts_with('['))
}

/// An address in words. A `data:` one is content, not a place, and may be a whole picture.
fn shown(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("mailto") => rest.to_owned(),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("data") && rest.len() > 48 => {
            format!("{scheme}:{}…", rest.chars().take(48).collect::<String>())
        }
        _ => url.to_owned(),
    }
}

/// The text of a link names a place other than the one it leads to.
fn misleads(text: &str, url: &str) -> bool {
    // Enough for any address one would recognise; the rest is not worth the walk.
    let text: String = text.chars().take(HREF_MAX_BYTES).filter(|c| c.is_whitespace() || !is_blank(*c)).collect();
    let target = host(url);
    text.split_whitespace().any(|word| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation() && c != '/' && c != '[' && c != ']');
        let named = host(word);
        let is_address = word.contains("://") || is_domain(&named) || named.starts_with('[');
        is_address && named != target
    })
}

/// Looks like `example.org`. Endings that files have and domains cannot have (`Node.js`) do not count.
fn is_domain(host: &str) -> bool {
    let Some((name, ending)) = host.rsplit_once('.') else { return false };
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || c == '-');
    name.split('.').all(is_label)
        && ending.chars().count() > 1
        && ending.chars().all(char::is_alphabetic)
        && !matches!(ending, "js" | "ts" | "json" | "toml" | "yaml" | "yml" | "txt" | "html" | "css" | "csv" | "pdf")
}

/// The host of an address, with or without a scheme, as one compares it.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
        _ => host,
    };
    let host = host.to_lowercase();
    host.strip_prefix("www.").unwrap_or(&host).trim_end_matches('.').to_owned()
}

/// A table while it is read; the first row is its head.
struct Table {
    aligns: Vec<Alignment>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn cell(&mut self) -> Option<&mut String> {
        self.rows.last_mut().and_then(|row| row.last_mut())
    }

    /// Lines of equal columns, with a rule under the head.
    fn layout(&self) -> String {
        let columns = self.aligns.len();
        let mut widths = vec![1; columns];
        let mut content_bytes = 0;
        for row in &self.rows {
            for (cell, width) in row.iter().zip(&mut widths) {
                content_bytes += cell.len() + 1;
                *width = columns_of(cell).min(PAD_MAX_COLUMNS).max(*width);
            }
        }
        // A wide table of empty cells would grow thirtyfold: it keeps its cells but not its alignment.
        let padded_bytes = self.rows.len() * widths.iter().map(|width| width + 3).sum::<usize>();
        if padded_bytes > 8 * content_bytes + 4096 {
            widths.fill(1);
        }
        let mut out = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            if index == 0 && row.iter().all(String::is_empty) {
                continue; // people write a table without a head like that
            }
            let filled = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
            let mut line = String::new();
            for (column, cell) in row.iter().take(filled).enumerate() {
                let width = widths.get(column).copied().unwrap_or(1);
                let free = width.saturating_sub(columns_of(cell));
                let left = match self.aligns.get(column) {
                    Some(Alignment::Right) => free,
                    Some(Alignment::Center) => free / 2,
                    _ => 0,
                };
                line.push_str(if column > 0 { " | " } else { "" });
                line.extend(std::iter::repeat_n(' ', left));
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', free - left));
            }
            out.push_str(line.trim_end());
            out.push('\n');
            if index == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                out.push_str(&rule.join("-+-"));
                out.push('\n');
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// How many columns of a monospace font a text takes: two for the wide characters of East Asia and emoji.
fn columns_of(text: &str) -> usize {
    let is_wide = |c: char| {
        matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3ffff}')
    };
    text.graphemes(true).map(|grapheme| if grapheme.starts_with(is_wide) { 2 } else { 1 }).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(markdown: &str) -> String {
        let rich = telegram(markdown);
        rich.html(0..rich.text().len())
    }

    const SAMPLE: &str = r#"# Results *for* `midwatch`

The **build** is _green_ & <b>fast</b>;
see [the log](https://ci.example.org/run?id=7&full=1) or ~~wait~~.
- [x] tests
- [ ] docs
  1. guide
  2. reference

     More on it,
     in two lines.
- plain

> Quoted **words**
>
> - in a list
>
> > and deeper
> > still

```rust
fn main() {
    println!("<&>");
}
```

| Name | Qty |
|:-----|----:|
| `apple` | 3 |
| 梨 | 12 |

***
![a chart](https://img.example.org/c.png)
"#;

    #[test]
    fn an_answer_of_every_kind() {
        insta::assert_snapshot!(html(SAMPLE), @r#"
<b>Results <i>for</i> </b><code>midwatch</code>

The <b>build</b> is <i>green</i> &amp; &lt;b&gt;fast&lt;/b&gt;;
see <a href="https://ci.example.org/run?id=7&amp;full=1">the log</a> or <s>wait</s>.

☑ tests
☐ docs
  1. guide

  2. reference

     More on it,
     in two lines.
• plain

<blockquote>Quoted <b>words</b>

• in a list

&gt; and deeper
&gt; still</blockquote>

<pre><code class="language-rust">fn main() {
    println!(&quot;&lt;&amp;&gt;&quot;);
}</code></pre>

<pre>Name  | Qty
------+----
apple |   3
梨    |  12</pre>

———

a chart (https://img.example.org/c.png)
"#);
    }

    #[test]
    fn words_and_blocks() {
        for (name, markdown, expected) in [
            ("text is escaped", "a < b && \"c\" > d &lt;", "a &lt; b &amp;&amp; &quot;c&quot; &gt; d &lt;"),
            ("a blank line between paragraphs", "a\n\n\n\nb", "a\n\nb"),
            ("line breaks stay", "a\nb\r\nc\rd  \ne", "a\nb\nc\nd\ne"),
            ("control characters go", "a\u{0}b\u{1b}[1mc&#7;\td", "ab[1mc\td"),
            ("emphasis over lines", "**a\nb**", "<b>a\nb</b>"),
            ("emphasis in its like", "**a __b__ c**", "<b>a b c</b>"),
            ("code within emphasis", "**a `b<` c**", "<b>a </b><code>b&lt;</code><b> c</b>"),
            ("code of blanks", "a `  ` b", "a    b"),
            ("an empty heading", "#\n\na", "a"),
            ("HTML is text", "<p>\nx\n</p>\n\ny<br>", "&lt;p&gt;\nx\n&lt;/p&gt;\n\ny&lt;br&gt;"),
            ("a list after words", "a\n- b\n- c", "a\n\n• b\n• c"),
            ("numbers go on", "7. a\n8. b\n\nc", "7. a\n8. b\n\nc"),
            ("an empty item", "- a\n-\n- b", "• a\n• \n• b"),
            ("a list in a marker's line", "- 1. a\n  2. b", "• 1. a\n  2. b"),
            ("code in an item", "- ```\n  ls\n  ```\n- b", "• \n<pre>ls</pre>\n• b"),
            ("a quote in an item", "- > a\n- b", "• \n<blockquote>a</blockquote>\n• b"),
            ("a quote of quotes", "> > a\n\nb", "<blockquote>&gt; a</blockquote>\n\nb"),
            ("two quotes", "> a\n\n> b", "<blockquote>a</blockquote>\n\n<blockquote>b</blockquote>"),
            ("an empty quote", ">\n\na", "a"),
            ("code in a quote", "> ```\n> a\n>\n> b\n> ```", "<blockquote><pre>a\n\nb</pre></blockquote>"),
            ("an odd language", "```a\"b\nx\n```", "<pre>x</pre>"),
            ("a language with more", "```c++,ignore\nx\n```", "<pre><code class=\"language-c++\">x</code></pre>"),
            ("an empty block", "a\n```\n\n```\nb", "a\n\nb"),
            ("an open block", "```\na\n b", "<pre>a\n b</pre>"),
            ("a table without a head", "| | |\n|-|-:|\n|a|b|\n|c|", "<pre>a | b\nc</pre>"),
            ("a wide table is not blown up", &wide_table(), "<pre>"),
        ] {
            let html = html(markdown);
            if expected == "<pre>" {
                assert!(html.starts_with(expected) && html.len() < 12 * markdown.len(), "{name}: {}", html.len());
            } else {
                assert_eq!(html, expected, "{name}");
            }
        }
    }

    fn wide_table() -> String {
        let head = format!("|{}\n|{}\n", format!("{}|", "x".repeat(40)).repeat(50), "-|".repeat(50));
        head + &format!("{}y\n", "|".repeat(50)).repeat(500)
    }

    #[test]
    fn links_say_where_they_lead() {
        for (name, markdown, expected) in [
            ("a link", "[t](https://a.example/x \"title\")", "<A>t</a>"),
            ("formatting in it", "**[t *u* `v`](https://a.example/x)**", "<b><A>t <i>u</i> v</a></b>"),
            ("no text", "[](https://a.example/x)", "<A>https://a.example/x</a>"),
            ("its own address", "<https://a.example/x>", "<A>https://a.example/x</a>"),
            ("the same host", "[www.A.example](https://a.example/x)", "<A>www.A.example</a>"),
            ("another host", "[http://b.c/](https://a.example/x)", "<A>http://b.c/</a> (https://a.example/x)"),
            ("a bare host", "[go: b.example!](https://a.example/x)", "<A>go: b.example!</a> (https://a.example/x)"),
            ("a user like a host", "[a.b](tg://a.b@c)", "a.b (tg://a.b@c)"),
            ("no host", "[Node.js e.g. 1.2.3](https://a.example/x)", "<A>Node.js e.g. 1.2.3</a>"),
            ("a chat", "[t](tg://user?id=7)", "<a href=\"tg://user?id=7\">t</a>"),
            ("no dot in the host", "[t](http://localhost:80/)", "t (http://localhost:80/)"),
            ("a script", "[t](javascript:alert(1))", "t (javascript:alert(1))"),
            ("a file", "[t](src/main.rs)", "t (src/main.rs)"),
            ("nowhere", "[t]()", "t"),
            ("mail", "[Ann](mailto:ann@a.example)", "Ann (ann@a.example)"),
            ("a mail address", "<ann@a.example>", "&lt;ann@a.example&gt;"),
            ("an image", "![alt *text*](https://a.example/x)", "alt <i>text</i> (https://a.example/x)"),
            ("an image without words", "![](https://a.example/x)", "https://a.example/x"),
            ("an image of data", "![p](data:image/png;base64,<D>)", "p (data:image/png;base64,<H>…)"),
            ("in a table", "|a|\n|-|\n|[t](ftp://a)|", "<pre>a\n-----------\nt (ftp://a)</pre>"),
            ("a quote mark", "[t](https://a.b/?\"&<)", "<a href=\"https://a.b/?&quot;&amp;&lt;\">t</a>"),
            ("a reference", "[t][1] u\n\n[1]: https://a.example/x", "<A>t</a> u"),
            ("sources", "t\n\n[2]: ftp://b\n[1]: ftp://a\n\nu", "t\n\nu\n\n[2]: ftp://b\n[1]: ftp://a"),
        ] {
            let markdown = markdown.replace("<D>", &"D".repeat(9_000));
            let expected = expected.replace("<A>", "<a href=\"https://a.example/x\">").replace("<H>", &"D".repeat(31));
            assert_eq!(html(&markdown), expected, "{name}");
        }
        assert!(misleads("a.example", "https://a.example@b.example/"));
        let long = format!("https://a.example/{}", "x".repeat(HREF_MAX_BYTES));
        assert_eq!(html(&format!("[t]({long})")), format!("t ({long})"), "too long for a tag");
    }
}
