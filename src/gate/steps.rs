//! The steps, each a function that lets a call pass or refuses it.

use super::{Admitted, BoundToolPlan, Cleared, Passed, Proposed, Refusal, Step, ToolContext};
use crate::policy::{Facts, Grants, Mode, Verdict, decide, is_not_run};

/// Takes a proposal through all steps that decide whether it may run.
pub(super) fn clear(
    plan: &BoundToolPlan,
    grants: &Grants,
    context: &ToolContext,
    proposed: Proposed,
    passed: &mut Vec<Passed>,
) -> Result<Cleared, Refusal> {
    let mut pass = |step, said: String| passed.push(Passed { step, said });
    let Some(handler) = plan.get(&proposed.wish.name).cloned() else {
        let names: Vec<_> = plan.schemas().into_iter().map(|schema| schema.name).collect();
        let have = if names.is_empty() { "it has no tools".to_owned() } else { format!("it has {}", names.join(", ")) };
        let grantable = context.mode == Mode::Daemon && !is_not_run(&proposed.wish.name);
        let rule = if is_not_run(&proposed.wish.name) {
            "this version has no such tool"
        } else {
            "this session has no such tool"
        };
        return Err(Refusal {
            step: Step::Scope,
            rule: format!("{rule}; {have}"),
            cure: grantable.then(|| "the operator can grant tools to this link".to_owned()),
        });
    };
    pass(Step::Scope, format!("in plan {}", plan.hash()));
    pass(Step::Middleware, "nothing rewrites calls".to_owned());

    // Policy looks before the schema does, so that a refused tool explains nothing about its arguments.
    let declared = handler.declaration();
    let none = serde_json::Map::new();
    let subject = handler.subject(proposed.wish.arguments.as_ref().unwrap_or(&none));
    let facts = Facts {
        tool: &declared.schema.name,
        class: declared.class,
        subject: subject.as_deref(),
        walks: declared.walks,
        mode: context.mode,
    };
    let decision = decide(&facts, grants);
    // Nobody answers questions in this version, so Ask is Deny.
    if decision.verdict != Verdict::Allow {
        return Err(Refusal { step: Step::Policy, rule: decision.rule, cure: decision.cure });
    }
    pass(Step::Policy, decision.rule);

    let refuse = |rule: String| Refusal { step: Step::Schema, rule, cure: None };
    let arguments = match proposed.wish.arguments {
        Ok(arguments) => arguments,
        Err(_) => {
            return Err(refuse(
                "the arguments are no complete JSON object; they may have been cut short by the output limit"
                    .to_owned(),
            ));
        }
    };
    handler.check(&arguments).map_err(refuse)?;
    pass(Step::Schema, "the arguments fit".to_owned());
    pass(Step::PreToolUse, "no hook is set".to_owned());
    pass(Step::Approval, "none is needed".to_owned());
    Ok(Cleared { call: proposed.call, handler, arguments })
}

/// Takes a cleared call to the point where it may run now.
pub(super) fn admit(cleared: Cleared, passed: &mut Vec<Passed>) -> Admitted {
    passed.push(Passed { step: Step::Locks, said: "a read takes none".to_owned() });
    passed.push(Passed { step: Step::Receipt, said: "a read needs none".to_owned() });
    Admitted(cleared)
}
