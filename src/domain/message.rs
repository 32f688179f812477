//! The canonical history: provider-neutral messages made of blocks, each block with its origin.

use serde::{Deserialize, Serialize};

use crate::domain::CallId;

/// Who a message is from, in the order every provider understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The people's side: what began or steered a turn.
    User,
    /// The model.
    Assistant,
    /// Results of the calls in the assistant message before it, in the order of the calls.
    Tool,
}

impl Role {
    /// The word in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// Where the words of a block come from; what policy may trust follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "origin", rename_all = "lowercase")]
pub enum Origin {
    /// The listed sender who began the turn.
    Cause,
    /// The operator's files, and the daemon's own notes.
    Operator,
    /// The model, in a turn that holds nothing from outside.
    Agent,
    /// The workspace, which only tools and the operator write.
    Workspace,
    /// Anyone else: forwarded or quoted words, attachments, pages; and all that a turn holding such made.
    Outside {
        /// What it was, for the refusal that names it: `forwarded message`.
        from: String,
    },
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Words.
    Text {
        /// The words, unescaped.
        text: String,
        /// Whose they are.
        #[serde(flatten)]
        origin: Origin,
    },
    /// The model asks for a tool.
    ToolCall {
        /// Ours; the provider's own id is forgotten.
        call: CallId,
        /// The tool's name as the model wrote it, which may be none we know.
        name: String,
        /// The arguments: an object, or whatever the model wrote where it was none (kept to show it its mistake).
        arguments: serde_json::Value,
    },
    /// What came of a call.
    ToolResult {
        /// The call it answers.
        call: CallId,
        /// What the model reads.
        text: String,
        /// The call failed or was refused.
        is_error: bool,
        /// Whose words the result holds.
        #[serde(flatten)]
        origin: Origin,
    },
    /// The model thought; never shown, and no part of what it said.
    Reasoning(Reasoning),
}

/// What a model thought before it spoke, packed and sealed by its provider. Nobody here reads it: it goes back as it
/// is, in its place, to the model that made it, or is left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoning {
    /// The protocol in whose words it is: `anthropic`.
    pub provider: String,
    /// The model that made it; any other would refuse it.
    pub model: String,
    /// The provider's own block.
    pub raw: serde_json::Value,
}

impl Reasoning {
    /// Whether this model of this provider made it.
    #[must_use]
    pub fn is_of(&self, provider: &str, model: &str) -> bool {
        self.provider == provider && self.model == model
    }
}

/// One message of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub blocks: Vec<Block>,
}

impl Message {
    /// A message of one text block.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>, origin: Origin) -> Self {
        Self { role, blocks: vec![Block::Text { text: text.into(), origin }] }
    }

    /// All text blocks, joined by a blank line.
    #[must_use]
    pub fn plain_text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text, .. } if !text.is_empty() => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n\n")
    }

    /// The ids of the calls this message proposes, in order.
    pub fn calls(&self) -> impl Iterator<Item = CallId> + '_ {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolCall { call, .. } => Some(*call),
            _ => None,
        })
    }

    /// The ids of the calls this message answers, in order.
    pub fn results(&self) -> impl Iterator<Item = CallId> + '_ {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolResult { call, .. } => Some(*call),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::TurnId;

    #[test]
    fn a_stored_message_reads_back_the_same() {
        let call = CallId::new(TurnId::from_row(4), 1);
        let message = Message {
            role: Role::Assistant,
            blocks: vec![
                Block::Reasoning(Reasoning {
                    provider: "anthropic".into(),
                    model: "m".into(),
                    raw: serde_json::json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"}),
                }),
                Block::Text { text: "a <b>".into(), origin: Origin::Agent },
                Block::ToolCall { call, name: "read_file".into(), arguments: serde_json::json!({"path": "x"}) },
                Block::Text { text: "q".into(), origin: Origin::Outside { from: "quoted message".into() } },
            ],
        };
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), message);
        assert_eq!(message.plain_text(), "a <b>\n\nq");
        assert_eq!(message.calls().collect::<Vec<_>>(), [call]);
    }
}
