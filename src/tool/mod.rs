//! The tools: one a file, each a handler of the gate. This version's read the workspace and change nothing.

pub mod beneath;
pub mod list_files;
pub mod read_file;
pub mod search_files;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::domain::Origin;
use crate::gate::plan::BadName;
use crate::gate::{Admitted, Catalogue, Declaration, Finished, Handler, ToolContext};
use crate::model::ToolSchema;
use crate::policy::{EffectClass, ToolFacts};
use beneath::{Cancel, Root, RootError, ToolFailure};

/// What grants need to know of the tools this version runs.
pub const FACTS: &[ToolFacts] = &[
    ToolFacts { name: list_files::NAME, class: EffectClass::Read },
    ToolFacts { name: read_file::NAME, class: EffectClass::Read },
    ToolFacts { name: search_files::NAME, class: EffectClass::Read },
];

/// Most tools on blocking threads at one time.
const HANDS: usize = 8;

/// Tools cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The workspace cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A name is not fit.
    #[error(transparent)]
    Name(#[from] BadName),
}

/// The tools of a deployment whose workspace is `workspace`.
///
/// # Errors
/// [`ToolError::Root`] when the workspace is no directory that can be opened.
pub fn catalogue(workspace: &Path) -> Result<Catalogue, ToolError> {
    let root = Arc::new(Root::open(workspace)?);
    let hands = Arc::new(Semaphore::new(HANDS));
    let mut catalogue = Catalogue::default();
    catalogue.register(Arc::new(FileTool::new(
        &root,
        &hands,
        (list_files::NAME, list_files::DESCRIPTION, list_files::schema()),
        list_files::run,
    )))?;
    catalogue.register(Arc::new(FileTool::new(
        &root,
        &hands,
        (read_file::NAME, read_file::DESCRIPTION, read_file::schema()),
        read_file::run,
    )))?;
    catalogue.register(Arc::new(FileTool::new(
        &root,
        &hands,
        (search_files::NAME, search_files::DESCRIPTION, search_files::schema()),
        search_files::run,
    )))?;
    Ok(catalogue)
}

type Run<A> = fn(&Root, &A, &Cancel<'_>) -> Result<String, ToolFailure>;

/// A tool that reads beneath the workspace on a blocking thread.
struct FileTool<A> {
    declaration: Declaration,
    root: Arc<Root>,
    hands: Arc<Semaphore>,
    run: Run<A>,
}

impl<A: DeserializeOwned + Send + 'static> FileTool<A> {
    fn new(root: &Arc<Root>, hands: &Arc<Semaphore>, told: (&str, &str, Value), run: Run<A>) -> Self {
        let (name, description, parameters) = told;
        let schema = ToolSchema { name: name.to_owned(), description: description.to_owned(), parameters };
        let declaration =
            Declaration { schema, class: EffectClass::Read, subject: Some("path"), walks: name != read_file::NAME };
        Self { declaration, root: root.clone(), hands: hands.clone(), run }
    }

    fn arguments(arguments: &Map<String, Value>) -> Result<A, String> {
        serde_json::from_value(Value::Object(arguments.clone()))
            .map_err(|error| format!("the arguments do not fit: {error}"))
    }
}

impl<A: DeserializeOwned + Send + 'static> Handler for FileTool<A> {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    fn subject(&self, arguments: &Map<String, Value>) -> Option<String> {
        // A path that is left out means the workspace itself.
        let asked = match arguments.get("path") {
            None | Some(Value::Null) => ".",
            Some(Value::String(path)) => path,
            Some(_) => return None,
        };
        let path = self.root.resolve(asked).ok()?;
        Some(if path.as_str().is_empty() { ".".to_owned() } else { path.as_str().to_owned() })
    }

    fn check(&self, arguments: &Map<String, Value>) -> Result<(), String> {
        Self::arguments(arguments).map(|_| ())
    }

    fn run<'a>(&'a self, admitted: &'a Admitted, context: &'a ToolContext) -> BoxFuture<'a, Finished> {
        Box::pin(async move {
            let arguments = match Self::arguments(admitted.arguments()) {
                Ok(arguments) => arguments,
                Err(error) => return Finished::failed(error),
            };
            let Ok(place) = self.hands.clone().acquire_owned().await else {
                return Finished::failed("The daemon is stopping.");
            };
            let (root, run, stop) = (self.root.clone(), self.run, context.stop.clone());
            // Set when this future is dropped, so that the thread does not work on for nobody.
            let gone = Gone(Arc::new(AtomicBool::new(false)));
            let seen = gone.0.clone();
            #[expect(
                clippy::disallowed_methods,
                reason = "tools are a shell that owns blocking work, bounded by its hands"
            )]
            let done = tokio::task::spawn_blocking(move || {
                let _place = place;
                run(&root, &arguments, &|| seen.load(Ordering::Relaxed) || stop.is_asked())
            })
            .await;
            match done {
                Ok(Ok(text)) => Finished { text, is_error: false, origin: Origin::Workspace },
                Ok(Err(failure)) => Finished::failed(failure.to_string()),
                Err(panic) => {
                    tracing::error!(tool = self.declaration.schema.name, %panic, "A tool panicked.");
                    Finished::failed("The tool broke; the log of the daemon says more.")
                }
            }
        })
    }
}

struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
