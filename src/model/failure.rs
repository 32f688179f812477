//! What a refusal or a broken answer means: status and words of a server, turned into one [`ErrorClass`].
//!
//! Servers agree on statuses only roughly: a history that is too long comes as 400, 413, 429 or 500, a spent account as
//! 402 or 429. So the words of the body speak first where they are unmistakable, and the status decides the rest.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use serde_json::Value;

use crate::model::{ErrorClass, ModelError};

/// No server may keep a turn waiting for longer than this; what it asked beyond is cut.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Shorter keys are dummies of local servers (`x`, `no`), and blanking them would only garble the message.
const SHORTEST_SECRET: usize = 4;

/// Marks of a request that is longer than the model's window, in codes and messages of the servers we know.
const TOO_LONG: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size_error",
    "maximum context length",
    "exceeds the available context size",
    "context length exceeded",
    "context window",
    "prompt is too long",
    "exceed context limit", // Anthropic's, for question and longest answer together
    "request_too_large",
    "request too large", // OpenAI's 429 for a single request above the tokens a minute: waiting never helps
];

/// Marks of a filter that refused the request.
const FILTERED: &[&str] =
    &["content_filter", "content_policy_violation", "content management policy", "content filtering policy"];

/// Marks of an account that is used up.
const SPENT: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_error",
    "spend_limit_reached",
    "credit balance is too low",
];

/// Makes errors out of what servers and connections say, and keeps the key out of them.
#[derive(Clone)]
pub(super) struct Teller {
    /// The header of this attempt that carries the key; its `Debug` shows nothing.
    pub(super) key: Option<HeaderValue>,
}

impl Teller {
    /// An error of `class` in these words, which may be a server's.
    pub(super) fn error(&self, class: ErrorClass, words: &str) -> ModelError {
        ModelError::new(class, self.clean(words))
    }

    /// The connection broke, or the answer is none.
    pub(super) fn network(&self, words: &str) -> ModelError {
        self.error(ErrorClass::Network, words)
    }

    /// reqwest's error with its causes, of which the first alone says next to nothing, and without the URL.
    pub(super) fn broken(&self, what: &str, err: reqwest::Error) -> ModelError {
        let class = if err.is_builder() { ErrorClass::BadRequest } else { ErrorClass::Network };
        self.error(class, &format!("{what}: {}", causes(err)))
    }

    /// What an answer with a status other than 2xx means.
    pub(super) fn refused(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ModelError {
        let code = status.as_u16();
        if status.is_redirection() {
            // Following it would send the key and the talk to a place nobody configured.
            return self.error(ErrorClass::BadRequest, &format!("HTTP {code}: redirects elsewhere: check base_url"));
        }
        let said = Said::of_body(body);
        let (class, hint) = match (classify(Some(code), &said), &said.found) {
            (ErrorClass::BadRequest, false) if code == 404 => (ErrorClass::BadRequest, " (check base_url)"),
            (class, _) => (class, ""),
        };
        let mut error = self.error(class, &format!("HTTP {code}: {}{hint}", said.in_words()));
        error.retry_after = retry_after(headers);
        error
    }

    /// What an error inside an answer of status 200 means.
    pub(super) fn reported(&self, error: &Value) -> ModelError {
        let said = Said::of_value(error);
        self.error(classify(said.status, &said), &format!("the server reports: {}", said.in_words()))
    }

    /// Without control characters and without the key, in this order: the other way round a key could come together
    /// again.
    fn clean(&self, words: &str) -> String {
        let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let key = self.key.as_ref().and_then(|header| header.to_str().ok()).unwrap_or_default();
        let key = key.strip_prefix("Bearer ").unwrap_or(key);
        if key.len() < SHORTEST_SECRET { words } else { words.replace(key, "***") }
    }
}

/// An error and its causes in one line, for a stream that knows only text.
pub(super) fn causes(err: reqwest::Error) -> String {
    let err = err.without_url();
    let mut text = err.to_string();
    let mut cause = std::error::Error::source(&err);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// What an error body says, whichever of the usual shapes it has.
#[derive(Debug, Default)]
struct Said {
    message: String,
    /// `code` and `type`, as words.
    code: String,
    /// A status inside the body; llama.cpp puts it into `code`.
    status: Option<u16>,
    /// Whether the body was an error as an API writes it, not a page of some proxy.
    found: bool,
}

impl Said {
    fn of_body(body: &[u8]) -> Self {
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            return Self::of_value(&value);
        }
        let text = String::from_utf8_lossy(body);
        let message = match text.trim() {
            "" => "no words".to_owned(),
            page if page.starts_with('<') => "an HTML page".to_owned(),
            text => text.to_owned(),
        };
        Self { message, ..Self::default() }
    }

    /// Shapes seen: `{"error":{…}}`, `{"error":"…"}`, `[{"error":{…}}]`, `{"object":"error","message":…}`, `{"detail":…}`.
    fn of_value(value: &Value) -> Self {
        let value = value.as_array().and_then(|list| list.first()).unwrap_or(value);
        let value = value.get("error").filter(|error| !error.is_null()).unwrap_or(value);
        if let Some(message) = value.as_str() {
            return Self { message: message.to_owned(), found: true, ..Self::default() };
        }
        let message = ["message", "detail", "error_description"]
            .iter()
            .find_map(|key| value.get(key).filter(|found| !found.is_null()))
            .map(|found| found.as_str().map_or_else(|| found.to_string(), str::to_owned));
        let words = ["/code", "/type", "/details/error_code"];
        let words = words.iter().filter_map(|key| value.pointer(key).and_then(Value::as_str));
        let status = ["code", "status"].iter().find_map(|key| {
            let found = value.get(key)?;
            let number = found.as_u64().or_else(|| found.as_str()?.parse().ok())?;
            u16::try_from(number).ok().filter(|status| (400..600).contains(status))
        });
        Self {
            code: words.collect::<Vec<_>>().join(" "),
            status,
            found: message.is_some(),
            message: message.unwrap_or_else(|| value.to_string()),
        }
    }

    fn in_words(&self) -> String {
        if self.code.is_empty() { self.message.clone() } else { format!("{} ({})", self.message, self.code) }
    }
}

fn classify(status: Option<u16>, said: &Said) -> ErrorClass {
    let words = format!("{} {}", said.code, said.message).to_lowercase();
    let says = |marks: &[&str]| marks.iter().any(|mark| words.contains(mark));
    match status {
        Some(401 | 403) => ErrorClass::Auth,
        Some(402) => ErrorClass::Quota,
        Some(413) => ErrorClass::ContextTooLong,
        Some(400 | 422 | 429 | 500) | None if says(TOO_LONG) => ErrorClass::ContextTooLong,
        Some(400 | 422) | None if says(FILTERED) => ErrorClass::Content,
        Some(400 | 429) | None if says(SPENT) => ErrorClass::Quota,
        Some(429 | 503 | 529) => ErrorClass::Overload,
        Some(408 | 409 | 425) => ErrorClass::Network,
        Some(400..=499) => ErrorClass::BadRequest,
        // An error in the middle of a stream has no status of its own.
        None if says(&["rate_limit", "rate limit", "overloaded"]) => ErrorClass::Overload,
        None if says(&["authentication_error", "permission_error", "invalid_api_key"]) => ErrorClass::Auth,
        None if says(&["invalid_request_error", "not_found_error"]) => ErrorClass::BadRequest,
        _ => ErrorClass::Network,
    }
}

/// `retry-after-ms`, or `retry-after` in seconds or as a date. A date counts from the answer's own `date`: the server's
/// clock, not ours, says how long the wait is.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let seconds = |text: &str, unit: f64| {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
        Some(Duration::from_secs_f64((number * unit).min(LONGEST_WAIT.as_secs_f64())))
    };
    if let Some(wait) = text("retry-after-ms").and_then(|text| seconds(text, 0.001)) {
        return Some(wait);
    }
    let after = text(RETRY_AFTER.as_str())?;
    seconds(after, 1.0).or_else(|| {
        let at = |text| jiff::fmt::rfc2822::parse(text).ok().map(|at| at.timestamp().as_second());
        let wait = at(after)?.saturating_sub(at(text(DATE.as_str())?)?);
        Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0)).min(LONGEST_WAIT))
    })
}

#[cfg(test)]
mod tests {
    use super::ErrorClass::{Auth, BadRequest, Content, ContextTooLong, Network, Overload, Quota};
    use super::*;

    fn teller() -> Teller {
        Teller { key: Some(HeaderValue::from_static("Bearer sk-secret-1")) }
    }

    #[test]
    fn status_and_words_make_a_class() {
        for (status, body, expected) in [
            (401, r#"{"error":{"message":"no"}}"#, Auth),
            (403, "", Auth),
            (404, r#"{"error":{"message":"model \"x\" not found, try pulling it first"}}"#, BadRequest),
            (404, "<html>", BadRequest),
            (405, "", BadRequest),
            (400, r#"{"error":{"message":"bad role","type":"invalid_request_error"}}"#, BadRequest),
            (422, r#"{"detail":[{"msg":"field required"}]}"#, BadRequest),
            (400, r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#, ContextTooLong),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size"}}"#,
                ContextTooLong,
            ),
            (400, r#"{"error":{"code":400,"message":"x","type":"exceed_context_size_error"}}"#, ContextTooLong),
            (400, r#"{"object":"error","message":"This model's maximum context length is 9"}"#, ContextTooLong),
            (400, r#"{"error":"prompt is too long"}"#, ContextTooLong),
            (429, r#"{"error":{"message":"Request too large for m on tokens per min"}}"#, ContextTooLong),
            (500, r#"{"error":{"message":"the request exceeds the available context size"}}"#, ContextTooLong),
            (413, "", ContextTooLong),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"}}"#,
                ContextTooLong,
            ),
            (400, r#"{"error":{"message":"Output blocked by content filtering policy"}}"#, Content),
            (
                400,
                r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to go on"}}"#,
                Quota,
            ),
            (400, r#"{"error":{"code":"content_filter","message":"x"}}"#, Content),
            (400, r#"{"error":{"code":"content_policy_violation","message":"x"}}"#, Content),
            (402, "", Quota),
            (
                429,
                r#"{"error":{"type":"rate_limit_error","details":{"error_code":"contract_spend_limit_reached"}}}"#,
                Quota,
            ),
            (429, r#"{"error":{"code":"insufficient_quota","message":"x"}}"#, Quota),
            (429, r#"{"error":{"code":"rate_limit_exceeded","message":"x"}}"#, Overload),
            (429, r#"[{"error":{"code":429,"message":"RESOURCE_EXHAUSTED"}}]"#, Overload),
            (503, "Loading model", Overload),
            (529, r#"{"error":{"type":"overloaded_error"}}"#, Overload),
            (408, "", Network),
            (409, "", Network),
            (425, "", Network),
            (500, "oops", Network),
            (502, "<html>bad gateway</html>", Network),
            (504, "", Network),
            (520, "", Network),
            (301, "", BadRequest),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = teller().refused(status, &HeaderMap::new(), body.as_bytes());
            assert_eq!(error.class, expected, "{status} {body}: {error}");
        }
    }

    #[test]
    fn an_error_in_the_stream_has_a_class_too() {
        for (error, expected) in [
            (r#"{"code":400,"type":"exceed_context_size_error","message":"x"}"#, ContextTooLong),
            (r#"{"code":"503","message":"x"}"#, Overload),
            (r#"{"message":"overloaded"}"#, Overload),
            (r#"{"type":"authentication_error"}"#, Auth),
            (r#"{"type":"permission_error","message":"x"}"#, Auth),
            (r#"{"type":"billing_error","message":"x"}"#, Quota),
            (r#"{"type":"rate_limit_error","message":"x"}"#, Overload),
            (r#"{"type":"overloaded_error","message":"Overloaded"}"#, Overload),
            (r#"{"type":"request_too_large","message":"x"}"#, ContextTooLong),
            (r#"{"type":"invalid_request_error","message":"prompt is too long"}"#, ContextTooLong),
            (r#"{"type":"not_found_error","message":"model: x"}"#, BadRequest),
            (r#"{"type":"api_error","message":"Internal server error"}"#, Network),
            (r#"{"type":"timeout_error","message":"x"}"#, Network),
            (r#"{"code":"insufficient_quota"}"#, Quota),
            (r#"{"code":"content_filter"}"#, Content),
            (r#"{"type":"invalid_request_error","message":"x"}"#, BadRequest),
            (r#""upstream went away""#, Network),
            ("{}", Network),
        ] {
            assert_eq!(teller().reported(&serde_json::from_str(error).unwrap()).class, expected, "{error}");
        }
    }

    #[test]
    fn a_message_is_one_line_short_and_without_the_key() {
        let status = StatusCode::UNAUTHORIZED;
        let body = "Incorrect API key:\n\tsk-secret-1\u{7}!";
        let error = teller().refused(status, &HeaderMap::new(), body.as_bytes());
        assert_eq!(error.message, "HTTP 401: Incorrect API key:  *** !");
        let error = teller().refused(status, &HeaderMap::new(), "sk-secret-1".repeat(900).as_bytes());
        assert!(!error.message.contains("secret") && error.message.chars().count() <= 500, "{error}");
        let dummy = Teller { key: Some(HeaderValue::from_static("Bearer x")) };
        assert_eq!(dummy.network("max tokens").message, "max tokens");
    }

    #[test]
    fn the_wait_a_server_asks_for() {
        let date = "Tue, 01 Dec 2026 00:00:00 GMT";
        for (name, headers, expected_ms) in [
            ("none", vec![], None),
            ("seconds", vec![("retry-after", "7")], Some(7_000)),
            ("a fraction", vec![("retry-after", "0.5")], Some(500)),
            ("milliseconds come first", vec![("retry-after", "7"), ("retry-after-ms", "120")], Some(120)),
            ("an hour at most", vec![("retry-after", "999999999999")], Some(3_600_000)),
            ("a date", vec![("date", date), ("retry-after", "Tue, 01 Dec 2026 00:01:30 GMT")], Some(90_000)),
            ("a date gone by", vec![("date", date), ("retry-after", "Mon, 30 Nov 2026 00:01:30 GMT")], Some(0)),
            ("a date without a clock", vec![("retry-after", "Tue, 01 Dec 2026 00:01:30 GMT")], None),
            ("below zero", vec![("retry-after", "-1")], None),
            ("no number", vec![("retry-after", "NaN")], None),
            ("no sense", vec![("retry-after", "soon")], None),
        ] {
            let mut map = HeaderMap::new();
            for (key, value) in headers {
                map.insert(key, HeaderValue::from_static(value));
            }
            assert_eq!(retry_after(&map), expected_ms.map(Duration::from_millis), "{name}");
        }
    }
}
