//! Decides whether a proposed tool call may run.
//!
//! ```text
//! Facts + grants + mode ──decide──▶ Allow ──▶ on through the gate
//!                               ├─▶ Ask   ──▶ an attached person answers; where nobody is attached it is Deny
//!                               └─▶ Deny  ──▶ back to the model with the rule and the cure
//! ```
//!
//! Pure: knows neither clock, disk nor network. All that a decision depends on is an argument, so a line of the
//! timeline replays it. The strictest of all matching rules wins; where none speaks the answer is no.

pub mod grants;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use grants::{Grant, Grants, ToolFacts, is_not_run};

/// What kind of effect a tool has on the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Looks at the workspace and changes nothing.
    Read,
}

impl fmt::Display for EffectClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
        })
    }
}

/// Who a session works for, and so its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The local console: the operator, on this machine.
    Console,
    /// A linked chat.
    Daemon,
}

impl Mode {
    /// The word in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Daemon => "daemon",
        }
    }
}

/// All that a decision depends on besides the grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The tool.
    pub tool: &'a str,
    /// Its effect class.
    pub class: EffectClass,
    /// The argument that grants are matched against, as far as the call has one that makes sense.
    pub subject: Option<&'a str>,
    /// The tool looks at everything beneath its subject, so a refusal of any of that concerns it.
    pub walks: bool,
    /// The session's mode.
    pub mode: Mode,
}

/// The answer; ordered from loose to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It may.
    Allow,
    /// A person has to say so.
    Ask,
    /// It may not.
    Deny,
}

/// A verdict with the rule that spoke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// What was decided.
    pub verdict: Verdict,
    /// By which rule: a grant's text with its place, or a sentence.
    pub rule: String,
    /// What the operator could do about a refusal.
    pub cure: Option<String>,
}

/// Judges a call. When rules disagree the strictest wins; when none speaks, the answer is no.
#[must_use]
pub fn decide(facts: &Facts<'_>, grants: &Grants) -> Decision {
    if let Some(deny) = grants.denied_by(facts) {
        return Decision {
            verdict: Verdict::Deny,
            rule: format!("deny = \"{}\" at {}", deny.text, deny.place),
            cure: Some(format!("the operator can remove that rule at {}", deny.place)),
        };
    }
    match (facts.mode, facts.class) {
        (Mode::Console, EffectClass::Read) => {
            Decision { verdict: Verdict::Allow, rule: "the console may read the workspace".to_owned(), cure: None }
        }
        (Mode::Daemon, EffectClass::Read) => match grants.allowed_by(facts) {
            Some(allow) => Decision {
                verdict: Verdict::Allow,
                rule: format!("allow = \"{}\" at {}", allow.text, allow.place),
                cure: None,
            },
            None => Decision {
                verdict: Verdict::Deny,
                rule: "no grant covers it".to_owned(),
                cure: Some(format!("the operator can add \"{}\" to `allow` of this link", facts.tool)),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::{Place, Placed};

    const TOOLS: &[ToolFacts] = &[
        ToolFacts { name: "read_file", class: EffectClass::Read },
        ToolFacts { name: "list_files", class: EffectClass::Read },
    ];

    fn placed(texts: &[&str]) -> Vec<Placed> {
        let place = Place { file: PathBuf::from("channels/telegram.toml"), line: 7 };
        texts.iter().map(|text| Placed { text: (*text).to_owned(), place: place.clone() }).collect()
    }

    fn grants(allow: &[&str], deny: &[&str]) -> Grants {
        Grants::parse(&placed(allow), &placed(deny), TOOLS).unwrap()
    }

    #[test]
    fn the_strictest_rule_wins_and_silence_is_no() {
        use Mode::{Console, Daemon};
        use Verdict::{Allow, Deny};
        for (name, allow, deny, mode, tool, subject, expected) in [
            ("no rule: deny", &[][..], &[][..], Daemon, "read_file", Some("a.md"), Deny),
            ("a grant allows", &["read_file"], &[], Daemon, "read_file", Some("a.md"), Allow),
            ("a grant is for its tool alone", &["read_file"], &[], Daemon, "list_files", Some("."), Deny),
            ("a deny beats an allow", &["read_file"], &["read_file"], Daemon, "read_file", Some("a.md"), Deny),
            ("a deny holds for the console too", &[], &["read_file"], Console, "read_file", Some("a.md"), Deny),
            ("the console reads", &[], &[], Console, "read_file", Some("a.md"), Allow),
            (
                "a pattern matches beneath",
                &["read_file(notes/**)"],
                &[],
                Daemon,
                "read_file",
                Some("notes/x/a.md"),
                Allow,
            ),
            ("and the folder itself", &["list_files(notes/**)"], &[], Daemon, "list_files", Some("notes"), Allow),
            ("but not its neighbour", &["read_file(notes/**)"], &[], Daemon, "read_file", Some("notes2/a.md"), Deny),
            ("a star stays in its folder", &["read_file(*.md)"], &[], Daemon, "read_file", Some("x/a.md"), Deny),
            ("one of several patterns", &["read_file(a, b/*)"], &[], Daemon, "read_file", Some("b/c"), Allow),
            ("no subject, no pattern match", &["read_file(a)"], &[], Daemon, "read_file", None, Deny),
            (
                "a deny pattern without a subject holds",
                &["read_file"],
                &["read_file(a)"],
                Daemon,
                "read_file",
                None,
                Deny,
            ),
            (
                "a walk does not lead past a deny",
                &["list_files"],
                &["list_files(a/b/**)"],
                Daemon,
                "list_files",
                Some("a"),
                Deny,
            ),
            ("nor from the top", &["list_files"], &["list_files(**/x)"], Daemon, "list_files", Some("."), Deny),
            (
                "a walk elsewhere goes on",
                &["list_files"],
                &["list_files(a/b/**)"],
                Daemon,
                "list_files",
                Some("c"),
                Allow,
            ),
            (
                "a deny pattern elsewhere does not",
                &["read_file"],
                &["read_file(a)"],
                Daemon,
                "read_file",
                Some("b"),
                Allow,
            ),
        ] {
            let facts = Facts { tool, class: EffectClass::Read, subject, walks: tool == "list_files", mode };
            assert_eq!(decide(&facts, &grants(allow, deny)).verdict, expected, "{name}");
        }
    }

    #[test]
    fn a_decision_names_its_rule_and_the_cure() {
        let facts =
            Facts { tool: "read_file", class: EffectClass::Read, subject: Some("a"), walks: false, mode: Mode::Daemon };
        let told = |allow: &[&str], deny: &[&str]| {
            let decision = decide(&facts, &grants(allow, deny));
            format!("{:?}: {} ({})", decision.verdict, decision.rule, decision.cure.unwrap_or_default())
        };
        insta::assert_snapshot!([told(&[], &[]), told(&["read_file"], &[]), told(&["read_file"], &["read_file(a)"])].join("\n"), @r#"
        Deny: no grant covers it (the operator can add "read_file" to `allow` of this link)
        Allow: allow = "read_file" at channels/telegram.toml:7 ()
        Deny: deny = "read_file(a)" at channels/telegram.toml:7 (the operator can remove that rule at channels/telegram.toml:7)
        "#);
    }

    #[test]
    fn a_grant_that_cannot_hold_is_a_fault_with_its_place() {
        let parse = |text: &str| {
            let faults = Grants::parse(&placed(&[text]), &[], TOOLS).unwrap_err();
            faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(
            ["reed_file", "write_file", "read_file(", "read_file()", "read_file(/etc/*)", "read_file(../x)", "read_file([)", "Read_File", ""]
                .map(parse).join("\n"), @r"
        error: channels/telegram.toml:7: unknown tool `reed_file` in a grant
        hint: did you mean `read_file`?
        error: channels/telegram.toml:7: tool `write_file` is not run by this version
        hint: remove the grant; this version runs read_file, list_files
        error: channels/telegram.toml:7: grant `read_file(` has no closing parenthesis
        hint: a grant is `tool` or `tool(pattern, pattern)`, with `!` at the end to hold after outside text too
        error: channels/telegram.toml:7: an empty pattern in a grant; leave the parentheses out to mean all arguments
        error: channels/telegram.toml:7: pattern `/etc/*` leads out of the workspace; patterns are relative to it
        error: channels/telegram.toml:7: pattern `../x` leads out of the workspace; patterns are relative to it
        error: channels/telegram.toml:7: pattern `[`: unclosed character class; missing ']'
        error: channels/telegram.toml:7: unknown tool `Read_File` in a grant
        hint: did you mean `read_file`?
        error: channels/telegram.toml:7: an empty grant
        hint: a grant is `tool` or `tool(pattern, pattern)`, with `!` at the end to hold after outside text too
        ");
    }
}
