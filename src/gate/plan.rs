//! Which tools a turn has: fixed when it begins, named by a hash in every checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Handler;
use crate::model::ToolSchema;
use crate::policy::{Facts, Grants, Mode, Verdict, decide};

/// All tools this daemon runs.
#[derive(Clone, Debug, Default)]
pub struct Catalogue(BTreeMap<String, Arc<dyn Handler>>);

/// Two tools under one name, or a name no provider takes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tool `{0}` cannot be registered: its name is taken or is not [a-z0-9_]{{1,64}}")]
pub struct BadName(String);

impl Catalogue {
    /// Adds a tool.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn register(&mut self, handler: Arc<dyn Handler>) -> Result<(), BadName> {
        let name = handler.declaration().schema.name.clone();
        let fits = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if !fits || self.0.contains_key(&name) {
            return Err(BadName(name));
        }
        self.0.insert(name, handler);
        Ok(())
    }
}

/// The tools of one turn. Immutable; what is not in it does not exist for the turn.
#[derive(Clone, Debug)]
pub struct BoundToolPlan {
    tools: BTreeMap<String, Arc<dyn Handler>>,
    hash: String,
}

impl BoundToolPlan {
    /// The tools that a session of `mode` with `grants` may use for at least some arguments.
    #[must_use]
    pub fn compile(catalogue: &Catalogue, grants: &Grants, mode: Mode) -> Self {
        let offered = catalogue.0.iter().filter(|(name, handler)| {
            let declared = handler.declaration();
            let facts = Facts { tool: name, class: declared.class, subject: None, walks: declared.walks, mode };
            // Asked without deny rules: one that names a path leaves the other paths.
            grants.speaks_for(name) || decide(&facts, &Grants::default()).verdict < Verdict::Deny
        });
        let tools: BTreeMap<_, _> = offered.map(|(name, handler)| (name.clone(), handler.clone())).collect();
        let mut hash = Sha256::new();
        for (name, handler) in &tools {
            let declared = handler.declaration();
            let subject = declared.subject.unwrap_or("");
            for part in [name, &declared.schema.description, &declared.schema.parameters.to_string(), subject] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
            hash.update(declared.class.to_string());
        }
        let hash = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { tools, hash }
    }

    /// The first 16 hexadecimal digits of the SHA-256 of all that is in it.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// What the model may propose, in the order of names.
    #[must_use]
    pub fn schemas(&self) -> Vec<ToolSchema> {
        self.tools.values().map(|handler| handler.declaration().schema.clone()).collect()
    }

    /// The tool called `name`, to the letter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.tools.get(name)
    }
}
