use std::sync::Arc;

use super::*;
use crate::domain::{Budget, Reasoning, Spent, TurnId};
use crate::gate::Passage;
use crate::model::{ProposedCall, Request, Usage};
use crate::store::chain::Numbered;
use crate::turn::{Fixed, Saved};

fn fixed() -> Fixed {
    Fixed {
        turn: TurnId::from_row(2),
        system: "You are midwatch.".into(),
        tools: Vec::new(),
        plan_hash: "0".into(),
        budget: Budget { time_ms: 100_000, rounds: 5, tokens: 10_000, cost_usd: 0.0 },
        window_tokens: 4_000,
        max_output_tokens: 500,
        day_over: None,
        window_told: false,
    }
}

/// A turn whose cause is "hi", after a turn of `before` characters each way.
fn state_after(before: usize, fixed: Fixed) -> State {
    let turn = TurnId::from_row(1);
    let old = |seq, role, origin| Numbered { seq, turn, message: Message::text(role, "x".repeat(before), origin) };
    let mut history = Vec::new();
    if before > 0 {
        history.push(old(1, Role::User, Origin::Cause));
        history.push(old(2, Role::Assistant, Origin::Agent));
    }
    let seq = i64::try_from(history.len()).unwrap() + 1;
    let cause = Message::text(Role::User, "hi", Origin::Cause);
    history.push(Numbered { seq, turn: fixed.turn, message: cause });
    State::new(Arc::new(fixed), history, 1, seq, Saved::default())
}

fn state() -> State {
    state_after(0, fixed())
}

fn words(text: &str) -> Event {
    let usage = Usage { input_tokens: 100, output_tokens: 10, cached_tokens: 0 };
    Event::Answered(Attempt::new(text.into(), Vec::new(), Finish::Stop, usage), 0.0)
}

fn calls(names: &[&str]) -> Event {
    let calls =
        names.iter().map(|name| ProposedCall { name: (*name).into(), arguments: Ok(serde_json::Map::new()) }).collect();
    Event::Answered(Attempt::new(String::new(), calls, Finish::Calls, Usage::default()), 0.0)
}

fn outcome(state: &State, text: &str, is_error: bool) -> Event {
    let outcomes = state.open.iter().map(|proposed| Outcome {
        text: text.into(),
        is_error,
        origin: Origin::Workspace,
        passage: Passage {
            call: proposed.call,
            tool: proposed.wish.name.clone(),
            passed: vec![],
            refused: None,
            failed: is_error,
        },
    });
    Event::Ran(outcomes.collect())
}

fn asked(effect: Effect) -> Request {
    match effect {
        Effect::Call(request) => request,
        other => panic!("expected a model call, got {other:?}"),
    }
}

fn ended(effect: Effect) -> Conclusion {
    match effect {
        Effect::Conclude(conclusion) => conclusion,
        other => panic!("expected an end, got {other:?}"),
    }
}

/// Proposes, commits, runs, commits: one whole tool round, up to the next effect.
fn round(state: State, name: &str, text: &str, is_error: bool) -> (State, Effect) {
    let (state, effect) = step(state, calls(&[name]));
    assert!(matches!(effect, Effect::Commit { kind: Kind::Proposed, .. }), "{effect:?}");
    let (state, effect) = step(state, Event::Committed);
    assert!(matches!(effect, Effect::Run(_)), "{effect:?}");
    let event = outcome(&state, text, is_error);
    let (state, effect) = step(state, event);
    assert!(matches!(effect, Effect::Commit { kind: Kind::Completed, .. }), "{effect:?}");
    step(state, Event::Committed)
}

#[test]
fn a_plain_turn_is_one_call_and_one_end() {
    let (state, effect) = step(state(), Event::Begin);
    assert_eq!(asked(effect).messages.len(), 1);
    let (state, effect) = step(state, words("hello"));
    let conclusion = ended(effect);
    assert_eq!((conclusion.reason, conclusion.shown.as_str()), (EndReason::Natural, "hello"));
    assert_eq!(state.saved.spent, Spent { rounds: 1, input_tokens: 100, output_tokens: 10, ..Spent::default() });
}

#[test]
fn no_tool_runs_before_its_proposal_is_committed_and_none_after_a_halt() {
    let (state, _) = step(state(), Event::Begin);
    let (state, effect) = step(state, calls(&["read_file", "list_files"]));
    assert!(matches!(effect, Effect::Commit { kind: Kind::Proposed, .. }));
    let (_, effect) = step(state, Event::Halt(EndReason::TimeBudget));
    let conclusion = ended(effect);
    assert_eq!(conclusion.messages[0].results().count(), 2, "every open call is answered");
    assert_eq!(conclusion.shown, EndReason::TimeBudget.sentence().unwrap());
}

#[test]
fn b117_the_same_failing_call_ends_the_turn_at_the_third_time() {
    let (mut state, _) = step(state(), Event::Begin);
    for _ in 0..2 {
        let (next, effect) = round(state, "read_file", "no such file", true);
        state = next;
        asked(effect);
    }
    let (_, effect) = round(state, "read_file", "no such file", true);
    assert_eq!(ended(effect).reason, EndReason::NoProgress);
}

#[test]
fn the_last_round_has_to_end_in_words() {
    let (mut state, _) = step(state(), Event::Begin);
    for number in 0..4 {
        let (next, effect) = round(state, "list_files", &format!("listing {number}"), false);
        state = next;
        assert_eq!(asked(effect).tool_use, number < 3, "round {number}");
    }
    let (_, effect) = step(state.clone(), words("all there is"));
    assert_eq!(ended(effect).reason, EndReason::ForcedText);
    let (_, effect) = step(state, calls(&["list_files"]));
    assert_eq!(ended(effect).reason, EndReason::RoundLimit);
}

#[test]
fn an_empty_answer_is_asked_for_twice_and_then_owned_up_to() {
    let (mut state, _) = step(state(), Event::Begin);
    for _ in 0..2 {
        let (next, effect) = step(state, words("  "));
        assert!(matches!(effect, Effect::Commit { kind: Kind::Completed, .. }), "{effect:?}");
        let (next, effect) = step(next, Event::Committed);
        assert!(asked(effect).messages.last().unwrap().plain_text().contains("Your answer was empty"));
        state = next;
    }
    let (_, effect) = step(state, words(""));
    assert_eq!(ended(effect).reason, EndReason::VerificationEscalated);
}

#[test]
fn a_failure_that_nobody_mentions_is_asked_about_and_one_that_is_mentioned_is_not() {
    let (state, _) = step(state(), Event::Begin);
    let (state, _) = round(state, "read_file", "There is no file `recipes/x.md`.", true);
    let (_, effect) = step(state.clone(), words("Your notes look fine!"));
    assert!(matches!(effect, Effect::Commit { kind: Kind::Completed, .. }), "{effect:?}");
    for honest in ["I could not read it.", "There is no such file.", "Die Datei recipes/x.md gibt es nicht."] {
        let (_, effect) = step(state.clone(), words(honest));
        assert_eq!(ended(effect).reason, EndReason::Natural, "{honest}");
    }
}

#[test]
fn the_model_is_warned_once_when_its_time_runs_short() {
    let (mut state, _) = step(state(), Event::Begin);
    state.saved.spent.time_ms = 81_000;
    let (state, effect) = round(state, "list_files", "a", false);
    let request = asked(effect);
    assert_eq!(
        request.messages.last().unwrap().plain_text(),
        "[midwatch: 19 s are left for this turn. Answer now with what you have.]"
    );
    let (_, effect) = round(state, "list_files", "b", false);
    assert_eq!(asked(effect).messages.last().unwrap().role, Role::Tool);
}

#[test]
fn tokens_and_the_day_are_limits() {
    let (state, _) = step(state(), Event::Begin);
    let usage = Usage { input_tokens: 9_990, output_tokens: 10, cached_tokens: 0 };
    let calls = vec![ProposedCall { name: "list_files".into(), arguments: Ok(serde_json::Map::new()) }];
    let (state, _) = step(state, Event::Answered(Attempt::new(String::new(), calls, Finish::Calls, usage), 0.0));
    let (state, _) = step(state, Event::Committed);
    let event = outcome(&state, "x", false);
    let (state, _) = step(state, event);
    let (_, effect) = step(state, Event::Committed);
    assert_eq!(ended(effect).reason, EndReason::TokenBudget);
    let day_over = Fixed { day_over: Some(EndReason::CostBudget), ..fixed() };
    let (_, effect) = step(state_after(0, day_over), Event::Begin);
    assert_eq!(ended(effect).reason, EndReason::CostBudget);
}

#[test]
fn the_window_leaves_out_whole_exchanges_and_the_thread_is_told_once() {
    let (state, effect) = step(state_after(9_000, fixed()), Event::Begin);
    assert!(matches!(effect, Effect::Commit { kind: Kind::Compacted, .. }), "{effect:?}");
    assert_eq!(state.first_seq, 3);
    let (state, effect) = step(state, Event::Committed);
    assert_eq!(asked(effect).messages.len(), 1);
    let (_, effect) = step(state, words("ok"));
    assert!(ended(effect).tells_window);
    let told = Fixed { window_told: true, ..fixed() };
    let (state, _) = step(state_after(9_000, told), Event::Begin);
    let (state, _) = step(state, Event::Committed);
    let (_, effect) = step(state, words("ok"));
    assert!(!ended(effect).tells_window);
}

#[test]
fn a_request_the_provider_finds_too_long_is_cut_to_half_once() {
    let too_long = || Event::Failed(ModelError::new(ErrorClass::ContextTooLong, "too long"));
    let (state, effect) = step(state_after(4_000, fixed()), Event::Begin);
    assert_eq!(asked(effect).messages.len(), 3);
    let (state, effect) = step(state, too_long());
    assert!(matches!(effect, Effect::Commit { kind: Kind::Compacted, .. }), "{effect:?}");
    let (state, effect) = step(state, Event::Committed);
    assert_eq!(asked(effect).messages.len(), 1);
    let (_, effect) = step(state, too_long());
    assert_eq!(ended(effect).reason, EndReason::ContextExhausted);
}

#[test]
fn each_error_class_has_one_end() {
    use ErrorClass::{Auth, BadRequest, Content, Network, Overload, Quota};
    for (class, expected) in [
        (Auth, EndReason::ModelActionRequired),
        (Quota, EndReason::ModelActionRequired),
        (Content, EndReason::ModelRefusal),
        (Network, EndReason::Failed),
        (Overload, EndReason::Failed),
        (BadRequest, EndReason::Failed),
    ] {
        let (state, _) = step(state(), Event::Begin);
        let (_, effect) = step(state, Event::Failed(ModelError::new(class, "secret words of a server")));
        let conclusion = ended(effect);
        assert_eq!(conclusion.reason, expected, "{class}");
        assert!(
            !conclusion.shown.contains("secret words"),
            "a server's words never go to a chat: {}",
            conclusion.shown
        );
        assert!(conclusion.detail.is_some_and(|detail| detail.contains("secret words")));
    }
}

#[test]
fn a_batch_that_a_crash_left_is_run_and_not_asked_for_again() {
    let (state, _) = step(state(), Event::Begin);
    let (state, _) = step(state, calls(&["read_file", "list_files"]));
    // What a restart finds: the history with the proposal, and the counters of its checkpoint.
    let found = State::new(state.fixed.clone(), state.history.clone(), 1, state.last_seq, state.saved.clone());
    let (found, effect) = step(found, Event::Begin);
    let Effect::Run(batch) = effect else { panic!("expected the batch, got {effect:?}") };
    assert_eq!(
        batch.iter().map(|proposed| proposed.call).collect::<Vec<_>>(),
        state.open.iter().map(|p| p.call).collect::<Vec<_>>()
    );
    let event = outcome(&found, "x", false);
    let (found, _) = step(found, event);
    let (found, effect) = step(found, Event::Committed);
    let request = asked(effect);
    assert_eq!(request.messages.len(), 3);
    let (found, _) = step(found, calls(&["read_file"]));
    assert_eq!(found.open[0].call.number(), 3, "numbers go on where they were");
}

#[test]
fn a_driver_that_is_out_of_step_ends_the_turn_instead_of_going_on() {
    let (_, effect) = step(state(), Event::Committed);
    assert_eq!(ended(effect).reason, EndReason::Failed);
}

fn thought(text: &str) -> Part {
    Part::Reasoning(Reasoning { provider: "anthropic".into(), model: "m".into(), raw: text.into() })
}

/// `t` for a thought, `w` for words, `c` for a call, in the order in which they are stored.
fn order(message: &Message) -> String {
    let letter = |block: &Block| match block {
        Block::Reasoning(_) => 't',
        Block::Text { .. } => 'w',
        Block::ToolCall { .. } => 'c',
        Block::ToolResult { .. } => 'r',
    };
    message.blocks.iter().map(letter).collect()
}

#[test]
fn b121_what_a_model_thought_keeps_its_place_or_is_left_out() {
    let word = |text: &str| Part::Text(text.into());
    let call = || Part::Call(ProposedCall { name: "list_files".into(), arguments: Ok(serde_json::Map::new()) });
    let answer = |parts: Vec<Part>| Event::Answered(Attempt { parts, ..Attempt::default() }, 0.0);
    let many = [vec![thought("a")], (0..20).map(|_| call()).collect(), vec![thought("b")]].concat();
    for (name, parts, expected) in [
        ("between calls", vec![thought("a"), call(), thought("b"), call(), word("so")], "tctcw".to_owned()),
        ("words of nothing", vec![thought("a"), word(" "), call()], "tc".to_owned()),
        ("nothing follows what is too much", many, format!("t{}", "c".repeat(16))),
    ] {
        let (state, _) = step(state(), Event::Begin);
        let Effect::Commit { messages, .. } = step(state, answer(parts)).1 else { panic!("{name}: no proposal") };
        assert_eq!(order(&messages[0]), expected, "{name}");
    }
    for (name, parts, shown, expected) in [
        ("before the words", vec![thought("a"), thought("b"), word("so"), word(" it is")], "so it is", "ttw"),
        ("between the words", vec![thought("a"), word("so"), thought("b"), word("it is")], "so\n\nit is", "w"),
        ("after the words", vec![word("so"), thought("a")], "so", "w"),
    ] {
        let (state, _) = step(state(), Event::Begin);
        let conclusion = ended(step(state, answer(parts)).1);
        assert_eq!((conclusion.shown.as_str(), order(&conclusion.messages[0]).as_str()), (shown, expected), "{name}");
    }
    // A thought alone is an empty answer, and leaves nothing in the history.
    let (state, _) = step(state(), Event::Begin);
    let Effect::Commit { messages, .. } = step(state, answer(vec![thought("a")])).1 else { panic!("no repair") };
    assert_eq!(messages.iter().map(|message| message.role).collect::<Vec<_>>(), [Role::User]);
}
