//! What a model wrote, in a form that servers take on the way back in: one odd message must not make every later
//! request of the session a 400.

use std::borrow::Cow;

use serde_json::{Value, json};

/// Stands for a text that is empty.
pub(super) const NOTHING: &str = "(empty)";

/// The longest tool name servers take.
const NAME_MAX: usize = 64;

/// A name the model made up, in the alphabet that servers check.
pub(super) fn name(name: &str) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = name.chars().take(NAME_MAX).map(fits).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// Arguments as an object; what was none stands in it as it was written.
pub(super) fn arguments(arguments: &Value) -> Cow<'_, Value> {
    match arguments {
        Value::Object(_) => Cow::Borrowed(arguments),
        Value::String(raw) => Cow::Owned(json!({"raw": raw})),
        other => Cow::Owned(json!({"raw": other.to_string()})),
    }
}
