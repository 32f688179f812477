//! Sending: one part, once, and what its answer means.

use futures_util::future::BoxFuture;
use serde_json::Value;
use teloxide::payloads::SendMessage;
use teloxide::types::{ChatId, LinkPreviewOptions, MessageId, ParseMode, ReplyParameters};

use super::api::ApiError;
use super::{Telegram, thread_of};
use crate::reply::{Outgoing, Platform, SendError};
use crate::store::outbox::Target;

/// What Telegram says when it does not like the formatting, beside "can't parse entities".
const FORMATTING: &[&str] = &["parse entities", "message is too long", "entities_too_long", "entity"];

impl Platform for Telegram {
    fn channel(&self) -> String {
        self.channel.clone()
    }

    fn send<'a>(&'a self, part: &'a Outgoing) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(async move {
            let chat: i64 = part
                .target
                .chat
                .parse()
                .map_err(|_| SendError::Refused(format!("`{}` is no chat id", part.target.chat)))?;
            let mut message = SendMessage::new(ChatId(chat), part.html.as_ref().unwrap_or(&part.plain));
            message.parse_mode = part.html.as_ref().map(|_| ParseMode::Html);
            message.message_thread_id = thread_of(&part.target);
            // A preview is fetched by Telegram from wherever a link in the answer points.
            message.link_preview_options = Some(LinkPreviewOptions {
                is_disabled: true,
                url: None,
                prefer_small_media: false,
                prefer_large_media: false,
                show_above_text: false,
            });
            message.reply_parameters = part.target.reply_to.as_ref().and_then(|id| id.parse().ok()).map(|id| {
                // The message that is answered may be gone; the answer is worth having all the same.
                ReplyParameters::new(MessageId(id)).allow_sending_without_reply()
            });
            let sent = self.api.send(&message).await.map_err(send_error)?;
            landed(&part.target, &sent)
        })
    }

    fn typing<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.type_once(target).await {
                tracing::debug!(%error, "\"Typing\" could not be shown.");
            }
        })
    }
}

/// Checks where the message stands: a deleted topic sends it to the main chat without an error.
fn landed(target: &Target, sent: &Value) -> Result<String, SendError> {
    let id = sent["message_id"].as_i64().map_or_else(|| "unknown".to_owned(), |id| id.to_string());
    match &target.thread {
        Some(thread) if sent["message_thread_id"].as_i64().map(|id| id.to_string()).as_ref() != Some(thread) => {
            Err(SendError::Refused(format!("topic {thread} is gone; the text landed in the main chat as message {id}")))
        }
        _ => Ok(id),
    }
}

fn send_error(error: ApiError) -> SendError {
    match error {
        ApiError::Later(wait) => SendError::Later(wait),
        ApiError::NotSent(_) => SendError::NotSent(error.to_string()),
        ApiError::Refused { code: 400, ref description }
            if FORMATTING.iter().any(|words| description.to_lowercase().contains(words)) =>
        {
            SendError::Formatting(error.to_string())
        }
        ApiError::Refused { .. } => SendError::Refused(error.to_string()),
        ApiError::Unauthorized(_) | ApiError::Token(_) | ApiError::Conflict(_) => SendError::Account(error.to_string()),
        ApiError::Server(_) | ApiError::Lost(_) => SendError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_answer_to_a_send_has_one_meaning() {
        let refused = |code, description: &str| ApiError::Refused { code, description: description.to_owned() };
        let kind = |error: ApiError| match send_error(error) {
            SendError::Later(_) => "later",
            SendError::NotSent(_) => "not sent",
            SendError::Formatting(_) => "formatting",
            SendError::Refused(_) => "refused",
            SendError::Unknown(_) => "unknown",
            SendError::Account(_) => "account",
        };
        for (name, error, expected) in [
            ("asked to wait", ApiError::Later(Duration::from_secs(3)), "later"),
            ("no connection", ApiError::NotSent(String::new()), "not sent"),
            ("bad tags", refused(400, "Bad Request: can't parse entities: Unmatched end tag"), "formatting"),
            ("too long", refused(400, "Bad Request: message is too long"), "formatting"),
            ("topic gone", refused(400, "Bad Request: message thread not found"), "refused"),
            ("chat gone", refused(400, "Bad Request: chat not found"), "refused"),
            ("blocked", refused(403, "Forbidden: bot was blocked by the user"), "refused"),
            ("token revoked", ApiError::Unauthorized(String::new()), "account"),
            ("gateway", ApiError::Server(502), "unknown"),
            ("lost answer", ApiError::Lost(String::new()), "unknown"),
        ] {
            assert_eq!(kind(error), expected, "{name}");
        }
    }

    #[test]
    fn b013_a_deleted_topic_is_noticed() {
        let target =
            Target { channel: "telegram:1".into(), chat: "-5".into(), thread: Some("7".into()), reply_to: None };
        assert_eq!(landed(&target, &serde_json::json!({"message_id": 3, "message_thread_id": 7})), Ok("3".to_owned()));
        assert!(matches!(landed(&target, &serde_json::json!({"message_id": 3})), Err(SendError::Refused(_))));
    }
}
