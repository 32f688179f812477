//! Telegram's own HTML, parsed as its server does: the same refusals, word for word, and a list of what the server
//! lets pass although the documentation forbids it.

use serde_json::{Value, json};

/// What a person sees, and how it is decorated.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) text: String,
    pub(crate) entities: Vec<Value>,
    /// Against the documentation, though accepted: bare `&`, `<` or `>`, and entities within `code` or `pre`.
    pub(crate) sloppy: Vec<String>,
}

struct Open {
    tag: String,
    argument: Option<String>,
    offset: usize,
}

/// Length as Telegram counts it.
pub(crate) fn utf16(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Parses `html`; the error is the text behind "can't parse entities: ".
pub(crate) fn parse(html: &str) -> Result<Parsed, String> {
    let mut out = Parsed::default();
    let mut open: Vec<Open> = Vec::new();
    let mut units = 0;
    let mut at = 0;
    while let Some(c) = html[at..].chars().next() {
        match c {
            '<' => at = tag(html, at, &mut out, &mut open, units)?,
            '&' => {
                let (decoded, next) = entity(html, at).unwrap_or_else(|| {
                    out.sloppy.push(format!("bare & at byte {at}"));
                    ('&', at + 1)
                });
                out.text.push(decoded);
                units += decoded.len_utf16();
                at = next;
            }
            _ => {
                if c == '>' {
                    out.sloppy.push(format!("bare > at byte {at}"));
                }
                out.text.push(c);
                units += c.len_utf16();
                at += c.len_utf8();
            }
        }
    }
    if let Some(left) = open.last() {
        return Err(format!("Can't find end tag corresponding to start tag \"{}\"", left.tag));
    }
    out.entities.sort_by_key(|entity| (entity["offset"].as_u64(), std::cmp::Reverse(entity["length"].as_u64())));
    Ok(out)
}

/// One tag at `begin`; returns where the text goes on.
fn tag(html: &str, begin: usize, out: &mut Parsed, open: &mut Vec<Open>, units: usize) -> Result<usize, String> {
    let rest = &html[begin + 1..];
    if let Some(name) = rest.strip_prefix('/') {
        let Some(top) = open.pop() else { return Err(format!("Unexpected end tag at byte offset {begin}")) };
        let end = name.find(|c: char| c == '>' || c.is_ascii_whitespace()).unwrap_or(name.len());
        let (name, after) = name.split_at(end);
        let spaces = after.len() - after.trim_start_matches(|c: char| c.is_ascii_whitespace()).len();
        if !after[spaces..].starts_with('>') {
            return Err(format!("Unclosed end tag at byte offset {begin}"));
        }
        if !name.is_empty() && !name.eq_ignore_ascii_case(&top.tag) {
            return Err(format!(
                "Unmatched end tag at byte offset {begin}, expected \"</{}>\", found \"</{name}>\"",
                top.tag
            ));
        }
        close(top, out, open, units);
        return Ok(begin + 2 + name.len() + spaces + 1);
    }
    let end = rest.find(|c: char| c == '>' || c.is_ascii_whitespace());
    let end = end.ok_or_else(|| format!("Unclosed start tag at byte offset {begin}"))?;
    let name = rest[..end].to_ascii_lowercase();
    if !TAGS.contains(&name.as_str()) {
        return Err(format!("Unsupported start tag \"{name}\" at byte offset {begin}"));
    }
    let (argument, next) = attributes(html, begin, begin + 1 + end, &name)?;
    if name == "span" && argument.as_deref() != Some("spoiler") {
        return Err(format!("Tag \"span\" must have class \"tg-spoiler\" at byte offset {begin}"));
    }
    let inner = open.iter().map(|o| o.tag.as_str()).collect::<Vec<_>>();
    // `<pre><code class="language-…">` is the one nesting that the documentation shows.
    let language = name == "code" && inner == ["pre"];
    if inner.iter().any(|tag| ["code", "pre"].contains(tag)) && !language {
        out.sloppy.push(format!("<{name}> within code or pre at byte {begin}"));
    }
    if name == "blockquote" && inner.contains(&"blockquote") || name == "a" && inner.contains(&"a") {
        out.sloppy.push(format!("<{name}> within itself at byte {begin}"));
    }
    open.push(Open { tag: name, argument, offset: units });
    Ok(next)
}

/// Turns a closed tag into its entity; an empty one leaves nothing behind.
fn close(top: Open, out: &mut Parsed, open: &[Open], units: usize) {
    let length = units - top.offset;
    if length == 0 {
        return;
    }
    let mut entity = json!({ "offset": top.offset, "length": length });
    let kind = match top.tag.as_str() {
        "b" | "strong" => "bold",
        "i" | "em" => "italic",
        "u" | "ins" => "underline",
        "s" | "strike" | "del" => "strikethrough",
        "span" | "tg-spoiler" => "spoiler",
        "blockquote" if top.argument.is_some() => "expandable_blockquote",
        "blockquote" => "blockquote",
        "pre" => "pre",
        // The language moves to the `pre` around it.
        "code" if open.last().is_some_and(|o| o.tag == "pre") && top.argument.is_some() => {
            out.entities
                .push(json!({ "type": "pre", "offset": top.offset, "length": length, "language": top.argument }));
            return;
        }
        "code" => "code",
        "tg-emoji" => {
            entity["custom_emoji_id"] = json!(top.argument);
            "custom_emoji"
        }
        _ => {
            // A link without a usable address is plain text to the server.
            let url = top.argument.filter(|url| url.contains("://") || url.contains('.') || url.starts_with("tg:"));
            let Some(url) = url else { return };
            entity["url"] = json!(url);
            "text_link"
        }
    };
    let covered = |e: &Value| kind == "pre" && e["type"] == "pre" && e["offset"] == entity["offset"];
    if out.entities.iter().any(covered) {
        return;
    }
    entity["type"] = json!(kind);
    out.entities.push(entity);
}

const TAGS: &[&str] = &[
    "a",
    "b",
    "strong",
    "i",
    "em",
    "s",
    "strike",
    "del",
    "u",
    "ins",
    "tg-spoiler",
    "tg-emoji",
    "span",
    "pre",
    "code",
    "blockquote",
];

/// The attributes of a start tag from `at` on; returns the one that matters for `tag`, and where the text goes on.
fn attributes(html: &str, begin: usize, mut at: usize, tag: &str) -> Result<(Option<String>, usize), String> {
    let mut argument = None;
    let unclosed = || format!("Unclosed start tag \"{tag}\" at byte offset {begin}");
    let bytes = html.as_bytes();
    let blank = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_whitespace);
    loop {
        while blank(at) {
            at += 1;
        }
        match bytes.get(at) {
            None => return Err(unclosed()),
            Some(b'>') => return Ok((argument, at + 1)),
            Some(_) => {}
        }
        let name_at = at;
        while bytes.get(at).is_some_and(|b| !b.is_ascii_whitespace() && *b != b'=' && *b != b'>') {
            at += 1;
        }
        let name = &html[name_at..at];
        if name.is_empty() {
            return Err(format!("Empty attribute name in the tag \"{tag}\" at byte offset {begin}"));
        }
        while blank(at) {
            at += 1;
        }
        if bytes.get(at) != Some(&b'=') {
            if tag == "blockquote" && name == "expandable" {
                argument = Some(String::new());
            }
            continue;
        }
        at += 1;
        while blank(at) {
            at += 1;
        }
        let mut value = String::new();
        match bytes.get(at) {
            None => return Err(unclosed()),
            Some(quote @ (b'"' | b'\'')) => {
                at += 1;
                while let Some(c) = html[at..].chars().next().filter(|c| *c != char::from(*quote)) {
                    let (c, next) = (c == '&').then(|| entity(html, at)).flatten().unwrap_or((c, at + c.len_utf8()));
                    value.push(c);
                    at = next;
                }
                if at >= bytes.len() {
                    return Err(unclosed());
                }
                at += 1;
            }
            Some(_) => {
                let token = at;
                while bytes.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'.' || *b == b'-') {
                    at += 1;
                }
                value = html[token..at].to_ascii_lowercase();
                if !blank(at) && bytes.get(at) != Some(&b'>') {
                    return Err(format!("Unexpected end of name token at byte offset {token}"));
                }
            }
        }
        match (tag, name) {
            ("a", "href") | ("tg-emoji", "emoji-id") => argument = Some(value),
            ("code", "class") => argument = value.strip_prefix("language-").map(str::to_owned).or(argument),
            ("span", "class") => argument = value.strip_prefix("tg-").map(str::to_owned).or(argument),
            ("blockquote", "expandable") => argument = Some(String::new()),
            _ => {}
        }
    }
}

/// The character of an HTML entity at `at`, and where the text goes on. Four names and numbers, no others.
fn entity(html: &str, at: usize) -> Option<(char, usize)> {
    let rest = &html[at + 1..];
    let (decoded, length) = if let Some(number) = rest.strip_prefix('#') {
        let (digits, radix, skip) =
            number.strip_prefix(['x', 'X']).map_or((number, 10, 1), |hexadecimal| (hexadecimal, 16, 2));
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        let code = u32::from_str_radix(&digits[..end], radix).ok().filter(|code| *code != 0)?;
        (char::from_u32(code)?, skip + end)
    } else {
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let decoded = match &rest[..end] {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            _ => return None,
        };
        (decoded, end)
    };
    let semicolon = usize::from(rest[length..].starts_with(';'));
    Some((decoded, at + 1 + length + semicolon))
}
