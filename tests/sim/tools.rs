//! The real read tools, run where they are called: on a thread of their own two of them would end in an order that no
//! seed decides.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use midwatch::domain::Origin;
use midwatch::gate::{Admitted, Catalogue, Declaration, Finished, Handler, ToolContext};
use midwatch::model::ToolSchema;
use midwatch::policy::EffectClass;
use midwatch::tool::beneath::{Cancel, Root, ToolFailure};
use midwatch::tool::{list_files, read_file};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::world::{Chance, Life};

type Run<A> = fn(&Root, &A, &Cancel<'_>) -> Result<String, ToolFailure>;

struct Inline<A> {
    declaration: Declaration,
    root: Arc<Root>,
    run: Run<A>,
    life: Arc<Life>,
    chance: Arc<Chance>,
}

/// `read_file` and `list_files` beneath the world's workspace; now and then slow.
pub(crate) fn catalogue(life: &Arc<Life>) -> Catalogue {
    let root = Arc::new(Root::open(&life.world.dir.join("data/workspace")).unwrap());
    let chance = Arc::new(Chance::new(life.world.seed, &format!("tools {}", life.number)));
    let mut catalogue = Catalogue::default();
    let (life, seams) = (life.clone(), (root, chance));
    let read = (read_file::NAME, read_file::DESCRIPTION, read_file::schema());
    let list = (list_files::NAME, list_files::DESCRIPTION, list_files::schema());
    catalogue.register(Arc::new(inline(&life, &seams, read, read_file::run))).unwrap();
    catalogue.register(Arc::new(inline(&life, &seams, list, list_files::run))).unwrap();
    catalogue
}

fn inline<A>(
    life: &Arc<Life>,
    (root, chance): &(Arc<Root>, Arc<Chance>),
    (name, description, parameters): (&str, &str, Value),
    run: Run<A>,
) -> Inline<A> {
    let schema = ToolSchema { name: name.to_owned(), description: description.to_owned(), parameters };
    let declaration =
        Declaration { schema, class: EffectClass::Read, subject: Some("path"), walks: name != read_file::NAME };
    Inline { declaration, root: root.clone(), run, life: life.clone(), chance: chance.clone() }
}

impl<A: DeserializeOwned + Send + Sync + 'static> Handler for Inline<A> {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    fn subject(&self, arguments: &Map<String, Value>) -> Option<String> {
        let asked = arguments.get("path").map_or(Some("."), Value::as_str)?;
        self.root.resolve(asked).ok().map(|path| if path.as_str().is_empty() { "." } else { path.as_str() }.to_owned())
    }

    fn check(&self, arguments: &Map<String, Value>) -> Result<(), String> {
        serde_json::from_value::<A>(Value::Object(arguments.clone())).map(|_| ()).map_err(|error| error.to_string())
    }

    fn run<'a>(&'a self, admitted: &'a Admitted, _: &'a ToolContext) -> BoxFuture<'a, Finished> {
        Box::pin(async move {
            let name = &self.declaration.schema.name;
            self.life.reach("a file").await;
            self.life.tell(&format!("{} runs {name}", admitted.call()));
            let slow = self.chance.weighed(&[(60, 0), (30, 800), (8, 20_000), (2, 500_000)]);
            self.life.sleep(self.chance.millis(slow / 2, slow)).await;
            self.life.reach("a file's end").await;
            let arguments = serde_json::from_value(Value::Object(admitted.arguments().clone())).unwrap();
            match (self.run)(&self.root, &arguments, &|| false) {
                Ok(text) => Finished { text, is_error: false, origin: Origin::Workspace },
                Err(failure) => Finished::failed(failure.to_string()),
            }
        })
    }
}
