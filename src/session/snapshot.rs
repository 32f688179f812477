//! One consistent reading of the operator's files: what is swapped, as a whole, by a reload.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Fault, Faults, Home, Model, Placed, Provider, Secret};
use crate::model::anthropic::Anthropic;
use crate::model::openai::OpenAi;
use crate::model::rehearsal::Rehearsal;
use crate::model::wire::{ApiKey, KeySource, MAX_RESPONSE_BYTES, Settings};
use crate::model::{Choice, ModelClient};
use crate::policy::Grants;
use crate::tool;

/// What a link may do and spend.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Its grants, with those that hold for every link.
    pub grants: Arc<Grants>,
    /// Its own time budget, in seconds.
    pub time_budget_secs: Option<u64>,
}

/// A valid configuration, ready for use.
pub struct Snapshot {
    /// The files' content.
    pub config: Config,
    /// The models: the first answers, the others stand in for it. Never empty.
    pub models: Arc<[Choice]>,
    /// By link name.
    pub links: BTreeMap<String, Rights>,
    /// The console's: refusals hold for it too.
    pub console: Arc<Grants>,
}

impl Snapshot {
    /// Reads and checks everything; opens no connection and asks for no secret.
    ///
    /// # Errors
    /// Every fault at once.
    pub fn load(home: &Home) -> Result<Self, Faults> {
        let (config, mut faults) = crate::config::read_all(home);
        let Some(config) = config else { return Err(Faults::new(faults)) };
        if !faults.is_empty() {
            faults.extend(rights(&config).err().into_iter().flatten());
            return Err(Faults::new(faults));
        }
        let main = model(&config.model).map_err(Faults::from)?;
        let others = config.fallback.iter().map(|other| model(other).map(|client| choice(other, client)));
        let others = others.collect::<Result<Vec<_>, _>>().map_err(Faults::from)?;
        let mut snapshot = Self::with_model(config, main)?;
        snapshot.models = snapshot.models.iter().cloned().chain(others).collect();
        Ok(snapshot)
    }

    /// Makes the client of one configured model; connects to nothing.
    ///
    /// # Errors
    /// The fault that keeps it from being made.
    pub fn client(settings: &Model) -> Result<Arc<dyn ModelClient>, Fault> {
        model(settings)
    }

    /// Makes a snapshot with a given model; a simulation brings its own.
    ///
    /// # Errors
    /// Every fault in the grants.
    pub fn with_model(config: Config, model: Arc<dyn ModelClient>) -> Result<Self, Faults> {
        let (console, links) = rights(&config).map_err(Faults::new)?;
        let models = [choice(&config.model, model)].into();
        Ok(Self { config, models, links, console })
    }
}

/// The console's grants, and every link's rights by its name.
type AllRights = (Arc<Grants>, BTreeMap<String, Rights>);

fn rights(config: &Config) -> Result<AllRights, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut parse = |allow: &[Placed], deny: &[Placed]| {
        let allow = [&config.policy.allow, allow].concat();
        let deny = [&config.policy.deny, deny].concat();
        let grants = Grants::parse(&allow, &deny, tool::FACTS);
        Arc::new(grants.map_err(|found| faults.extend(found)).unwrap_or_default())
    };
    let console = parse(&[], &[]);
    let mut links = BTreeMap::new();
    for link in config.telegram.iter().flat_map(|account| &account.links) {
        let grants = parse(&link.allow, &link.deny);
        links.insert(link.name.clone(), Rights { grants, time_budget_secs: link.time_budget_secs });
    }
    if faults.is_empty() { Ok((console, links)) } else { Err(faults) }
}

fn choice(settings: &Model, client: Arc<dyn ModelClient>) -> Choice {
    let price = &settings.price;
    Choice {
        client,
        window_tokens: settings.context_window,
        max_output_tokens: settings.max_output_tokens,
        price: (price.input, price.output, price.cached),
    }
}

fn model(settings: &Model) -> Result<Arc<dyn ModelClient>, Fault> {
    let key: KeySource = settings.api_key.clone().map(|secret| Arc::new(ModelKey(secret)) as _);
    let wire = Settings {
        model: settings.model.clone(),
        base_url: settings.base_url.clone(),
        request_timeout: Duration::from_secs(settings.request_timeout_secs),
        stall: Duration::from_secs(settings.stall_secs),
        max_response_bytes: MAX_RESPONSE_BYTES,
    };
    let client = match settings.provider {
        Provider::Rehearsal => Ok(Arc::new(Rehearsal::new()) as Arc<dyn ModelClient>),
        Provider::OpenAi => OpenAi::new(wire, key).map(|client| Arc::new(client) as _),
        Provider::Anthropic => Anthropic::new(wire, key).map(|client| Arc::new(client) as _),
    };
    client.map_err(|error| Fault::in_file("midwatch.toml", format!("[model] {}", error.message)))
}

/// The model's key, resolved each time a request leaves.
struct ModelKey(Secret);

impl ApiKey for ModelKey {
    fn with(&self, use_it: &mut dyn FnMut(&str)) -> Result<(), String> {
        use_it(self.0.resolve().map_err(|error| error.to_string())?.expose());
        Ok(())
    }
}
