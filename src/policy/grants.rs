//! The grammar of grants: `tool`, `tool(pattern, pattern)`, each may end in `!` (also after outside text).

use globset::{GlobBuilder, GlobMatcher};

use super::{EffectClass, Facts};
use crate::config::{Fault, Place, Placed};

/// Tools of the contract that this version does not run; a grant for one is refused instead of accepted in silence.
const NOT_RUN: &[&str] = &[
    "write_file",
    "edit_file",
    "fetch_url",
    "send_message",
    "set_reminder",
    "list_reminders",
    "cancel_reminder",
    "run_program",
    "run_command",
    "computer",
];

/// Whether `tool` is one of the contract that this version does not run.
#[must_use]
pub fn is_not_run(tool: &str) -> bool {
    NOT_RUN.contains(&tool)
}

/// What a grant needs to know of a tool.
#[derive(Clone, Copy, Debug)]
pub struct ToolFacts {
    /// Its name.
    pub name: &'static str,
    /// Its effect class.
    pub class: EffectClass,
}

/// One rule of the operator.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The tool.
    pub tool: String,
    /// As written.
    pub text: String,
    /// Where.
    pub place: Place,
    /// Holds after outside text too.
    pub after_outside: bool,
    /// Which arguments; none means all.
    patterns: Option<Vec<GlobMatcher>>,
    /// The folders up to the patterns' first wildcard: what they speak of lies beneath.
    roots: Vec<String>,
}

/// The rules of one link, with those that hold for every link.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    allow: Vec<Grant>,
    deny: Vec<Grant>,
}

impl Grants {
    /// Parses the rules as written.
    ///
    /// # Errors
    /// Every fault, each with its place.
    pub fn parse(allow: &[Placed], deny: &[Placed], tools: &[ToolFacts]) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut read = |rules: &[Placed]| {
            let mut grants = Vec::new();
            for rule in rules {
                match parse_one(rule, tools) {
                    Ok(grant) => grants.push(grant),
                    Err(fault) => faults.push(fault),
                }
            }
            grants
        };
        let grants = Self { allow: read(allow), deny: read(deny) };
        if faults.is_empty() { Ok(grants) } else { Err(faults) }
    }

    /// The first grant that covers the call.
    #[must_use]
    pub fn allowed_by(&self, facts: &Facts<'_>) -> Option<&Grant> {
        self.allow.iter().find(|grant| grant.tool == facts.tool && grant.covers(facts))
    }

    /// The first denial that covers the call, or may cover it because the call's argument makes no sense.
    #[must_use]
    pub fn denied_by(&self, facts: &Facts<'_>) -> Option<&Grant> {
        self.deny.iter().find(|grant| grant.tool == facts.tool && (grant.covers(facts) || grant.concerns(facts)))
    }

    /// Whether any grant speaks for `tool`: only then is it offered to the model.
    #[must_use]
    pub fn speaks_for(&self, tool: &str) -> bool {
        self.allow.iter().any(|grant| grant.tool == tool)
    }

    /// The grants, for people.
    pub fn allowed(&self) -> impl Iterator<Item = &Grant> {
        self.allow.iter()
    }
}

impl Grant {
    fn covers(&self, facts: &Facts<'_>) -> bool {
        match (&self.patterns, facts.subject) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(patterns), Some(subject)) => patterns.iter().any(|pattern| pattern.is_match(subject)),
        }
    }

    /// Whether the call may touch what the patterns speak of: its subject makes no sense, or it walks there.
    fn concerns(&self, facts: &Facts<'_>) -> bool {
        let beneath = |path: &str, folder: &str| {
            folder.is_empty() || path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        match facts.subject {
            None => true,
            Some(subject) => {
                let subject = if subject == "." { "" } else { subject };
                facts.walks && self.roots.iter().any(|root| beneath(root, subject) || beneath(subject, root))
            }
        }
    }
}

fn parse_one(rule: &Placed, tools: &[ToolFacts]) -> Result<Grant, Fault> {
    let fault = |message: String| Fault::at(&rule.place, message);
    let shape = "a grant is `tool` or `tool(pattern, pattern)`, with `!` at the end to hold after outside text too";
    let text = rule.text.trim();
    let (body, after_outside) = text.strip_suffix('!').map_or((text, false), |body| (body.trim_end(), true));
    let (tool, inside) = match body.split_once('(') {
        None => (body, None),
        Some((tool, rest)) => match rest.strip_suffix(')') {
            Some(inside) => (tool.trim_end(), Some(inside)),
            None => return Err(fault(format!("grant `{text}` has no closing parenthesis")).with_hint(shape)),
        },
    };
    if tool.is_empty() {
        return Err(fault("an empty grant".to_owned()).with_hint(shape));
    }
    if !tools.iter().any(|known| known.name == tool) {
        if is_not_run(tool) {
            let names: Vec<_> = tools.iter().map(|known| known.name).collect();
            return Err(fault(format!("tool `{tool}` is not run by this version"))
                .with_hint(format!("remove the grant; this version runs {}", names.join(", "))));
        }
        let nearest = tools
            .iter()
            .map(|known| known.name)
            .max_by(|a, b| strsim::jaro_winkler(a, tool).total_cmp(&strsim::jaro_winkler(b, tool)));
        let fault = fault(format!("unknown tool `{tool}` in a grant"));
        return Err(match nearest {
            Some(name) if strsim::jaro_winkler(name, &tool.to_lowercase()) > 0.8 => {
                fault.with_hint(format!("did you mean `{name}`?"))
            }
            _ => fault.with_hint(shape),
        });
    }
    let patterns = inside.map(|inside| {
        inside
            .split(',')
            .map(str::trim)
            .map(|pattern| path_pattern(pattern).map_err(&fault))
            .collect::<Result<Vec<_>, _>>()
    });
    let patterns = patterns.transpose()?.map(|patterns| patterns.into_iter().flatten().collect());
    let roots = inside.into_iter().flat_map(|inside| inside.split(',')).map(|pattern| {
        let plain = pattern.trim().split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        // A pattern without wildcards is its own root; otherwise the folder before the first one is.
        if plain.len() == pattern.trim().len() {
            plain
        } else {
            plain.rsplit_once('/').map_or("", |(folder, _)| folder)
        }
    });
    let roots = roots.map(ToOwned::to_owned).collect();
    Ok(Grant {
        tool: tool.to_owned(),
        text: text.to_owned(),
        place: rule.place.clone(),
        after_outside,
        patterns,
        roots,
    })
}

/// A path pattern under the workspace; `dir/**` covers `dir` itself too, or it could not be listed.
fn path_pattern(pattern: &str) -> Result<Vec<GlobMatcher>, String> {
    if pattern.is_empty() {
        return Err("an empty pattern in a grant; leave the parentheses out to mean all arguments".to_owned());
    }
    if pattern.starts_with('/') || pattern.starts_with('~') || pattern.split('/').any(|part| part == "..") {
        return Err(format!("pattern `{pattern}` leads out of the workspace; patterns are relative to it"));
    }
    let build = |pattern: &str| {
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("pattern `{pattern}`: {}", error.kind()))
    };
    let mut matchers = vec![build(pattern)?];
    if let Some(folder) = pattern.strip_suffix("/**") {
        matchers.push(build(folder)?);
    }
    Ok(matchers)
}
