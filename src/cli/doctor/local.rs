//! What can be seen without a connection: files, folders, the disk, and who is linked.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, statvfs};

use super::{Finding, counted};
use crate::cli::probe::Trouble;
use crate::config::{Config, Faults, Home, Secret};
use crate::session::Snapshot;

/// Below this the store soon takes no writes.
const FREE_FAULT_BYTES: u64 = 100 << 20;
/// Below this somebody should make room.
const FREE_WARN_BYTES: u64 = 1 << 30;
/// Files that can still be made; a store, its write-ahead file and logs need a few.
const FREE_FILES_MIN: u64 = 1_000;

/// The files parse and mean something.
pub(super) fn configuration(home: &Home, loaded: &Result<Snapshot, Faults>) -> Vec<Finding> {
    const TOPIC: &str = "configuration";
    match loaded {
        Ok(snapshot) => {
            let number = snapshot.config.files.len();
            vec![Finding::ok(TOPIC, format!("{} in {}", counted(number, "file"), home.config.display()))]
        }
        Err(_) if !home.config_file().exists() => {
            let what = format!("there is no {}", home.config_file().display());
            vec![Finding::fault(TOPIC, what, "`midwatch setup` writes it")]
        }
        Err(faults) => faults
            .iter()
            .map(|fault| {
                let line = fault.line.map(|line| format!(":{line}")).unwrap_or_default();
                let what = format!("{}{line}: {}", fault.file.display(), fault.message);
                let fix = fault.hint.clone().unwrap_or_else(|| "mend that line".to_owned());
                Finding::fault(TOPIC, what, fix)
            })
            .collect(),
    }
}

/// Every secret is there and its owner's alone. A variable that is missing here may be there for the daemon.
pub(super) fn secrets(config: &Config, daemon_runs: bool) -> Vec<Finding> {
    let models = std::iter::once(&config.model).chain(&config.fallback);
    let key = models.filter_map(|model| Some((format!("the key of {}", model.model), model.api_key.as_ref()?)));
    let tokens = config.telegram.iter().map(|account| (format!("the token of {}", account.name), &account.token));
    let all: Vec<_> = key.chain(tokens).collect();
    let mut findings: Vec<_> =
        all.iter().filter_map(|(whose, secret)| secret_trouble(whose, secret, daemon_runs)).collect();
    if findings.is_empty() && !all.is_empty() {
        findings.push(Finding::ok("secrets", format!("{} can be read", counted(all.len(), "secret"))));
    }
    findings
}

fn secret_trouble(whose: &str, secret: &Secret, daemon_runs: bool) -> Option<Finding> {
    const TOPIC: &str = "secrets";
    if let Err(error) = secret.resolve() {
        let Trouble { what, cure } = Trouble::from(error);
        let (what, cure) = (format!("{whose}: {what}"), cure.unwrap_or_default());
        // A shell has another environment than a service, and no credentials at all.
        let elsewhere = secret.is_of_process() && daemon_runs;
        return Some(match elsewhere {
            true => Finding::warn(TOPIC, format!("{what} here; the running daemon may have it"), cure),
            false => Finding::fault(TOPIC, what, cure),
        });
    }
    let fault = secret.check()?;
    Some(Finding::warn(TOPIC, format!("{whose}: {}", fault.message), fault.hint.unwrap_or_default()))
}

/// The folders belong to this user, can be written to, and are closed to others.
pub(super) fn folders(home: &Home) -> Vec<Finding> {
    const TOPIC: &str = "folders";
    let mut findings = Vec::new();
    for (folder, is_private) in [(&home.config, false), (&home.data, true), (&home.state, true), (&home.run, true)] {
        let shown = folder.display();
        let Ok(meta) = std::fs::metadata(folder) else {
            let above = existing_above(folder);
            if access(&above, Access::WRITE_OK | Access::EXEC_OK).is_err() {
                let what = format!("{shown} is not there and cannot be made in {}", above.display());
                findings.push(Finding::fault(TOPIC, what, "choose another place with --home, or change its owner"));
            }
            continue;
        };
        let (me, mode) = (rustix::process::geteuid().as_raw(), meta.permissions().mode());
        if !meta.is_dir() {
            findings.push(Finding::fault(TOPIC, format!("{shown} is no folder"), "move it away"));
        } else if meta.uid() != me {
            let what = format!("{shown} belongs to user {}, and this is user {me}", meta.uid());
            findings.push(Finding::fault(TOPIC, what, format!("run midwatch as its owner, or: chown -R {me} {shown}")));
        } else if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            findings.push(Finding::fault(
                TOPIC,
                format!("{shown} cannot be written to"),
                format!("chmod u+rwx {shown}"),
            ));
        } else if let Some(finding) = open_to_change(folder, mode, "what lies in it") {
            findings.push(finding);
        } else if is_private && mode & 0o077 != 0 {
            let what = format!("others can look into {shown}");
            findings.push(Finding::warn(TOPIC, what, format!("chmod 700 {shown}")));
        }
    }
    for file in config_files(home) {
        let mode = std::fs::metadata(&file).map_or(0, |meta| meta.permissions().mode());
        findings.extend(open_to_change(&file, mode, "what the agent may do"));
    }
    let is_new = !home.data.exists() && !home.state.exists();
    if findings.is_empty() && is_new {
        findings.push(Finding::ok(TOPIC, "those of the daemon are not there yet; the first start makes them"));
    } else if findings.is_empty() {
        findings.push(Finding::ok(TOPIC, "they are this user's, and closed to others"));
    }
    findings
}

/// A file or folder that others than its owner can write to.
fn open_to_change(path: &Path, mode: u32, what: &str) -> Option<Finding> {
    let shown = path.display();
    if mode & 0o002 != 0 {
        let fix = format!("chmod go-w {shown}");
        return Some(Finding::fault("folders", format!("everybody can change {shown}, and with it {what}"), fix));
    }
    // Where a user's group is the user alone, as on many systems, this is harmless.
    (mode & 0o020 != 0).then(|| {
        let fix = format!("chmod g-w {shown}");
        Finding::warn("folders", format!("its group can change {shown}, and with it {what}"), fix)
    })
}

fn config_files(home: &Home) -> Vec<PathBuf> {
    let channels = std::fs::read_dir(home.channels_dir()).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = channels.filter(|path| path.extension().is_some_and(|it| it == "toml")).collect();
    files.push(home.config_file());
    files.sort();
    files
}

/// The nearest folder above that is there.
fn existing_above(path: &Path) -> PathBuf {
    path.ancestors().skip(1).find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// There is room for the store.
pub(super) fn disk(home: &Home) -> Vec<Finding> {
    const TOPIC: &str = "disk";
    let place = if home.data.exists() { home.data.clone() } else { existing_above(&home.data) };
    let Ok(room) = statvfs(&place) else {
        return vec![Finding::warn(TOPIC, format!("{} does not say how much room it has", place.display()), "df -h")];
    };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let shown = format!("{} free for {}", size(free), home.data.display());
    let fix = "make room: when it is full nothing new is taken, and what is there is kept";
    // Some file systems count no files and say 0 of 0.
    let few_files = room.f_files > 0 && room.f_favail < FREE_FILES_MIN;
    vec![if free < FREE_FAULT_BYTES {
        Finding::fault(TOPIC, shown, fix)
    } else if few_files {
        Finding::warn(TOPIC, format!("{} can still be made", counted(room.f_favail as usize, "file")), fix)
    } else if free < FREE_WARN_BYTES {
        Finding::warn(TOPIC, shown, fix)
    } else {
        Finding::ok(TOPIC, shown)
    }]
}

/// Bytes for people.
pub(super) fn size(bytes: u64) -> String {
    if bytes >= 10 << 30 { format!("{} GiB", bytes >> 30) } else { format!("{} MiB", bytes.div_ceil(1 << 20)) }
}

/// Somebody is answered, and may speak.
pub(super) fn links(config: &Config, snapshot: Option<&Snapshot>) -> Vec<Finding> {
    const TOPIC: &str = "links";
    if config.telegram.is_empty() {
        return vec![Finding::ok(TOPIC, "no messenger is configured; the console needs no link")];
    }
    let mut findings = Vec::new();
    if config.operator.telegram.is_empty() {
        findings.push(Finding::warn(
            "operator",
            "nobody is the operator on Telegram, so nobody there may stop other people's turns",
            "`midwatch setup --yes --operator ID --overwrite`; `midwatch status` shows the ids of who wrote to the bot",
        ));
    }
    let links: Vec<_> = config.telegram.iter().flat_map(|account| &account.links).collect();
    if links.is_empty() {
        let fix = "`midwatch link telegram` makes a code for the running daemon";
        findings.push(Finding::warn(TOPIC, "no chat is linked, so nobody is answered on Telegram", fix));
        return findings;
    }
    for link in links.iter().filter(|link| link.senders.is_empty()) {
        let what = format!("nobody may speak in `{}` ({}): it has no senders", link.name, link.place);
        findings.push(Finding::warn(TOPIC, what, "add numeric ids: senders = [123456789]"));
    }
    let has_no_tools = |name: &str| {
        let rights = snapshot.and_then(|snapshot| snapshot.links.get(name));
        rights.is_some_and(|rights| rights.grants.allowed().next().is_none())
    };
    let bare: Vec<_> = links.iter().filter(|link| has_no_tools(&link.name)).map(|link| link.name.as_str()).collect();
    let mut what = counted(links.len(), "link");
    if !bare.is_empty() {
        what.push_str(&format!("; no tool may be used in {} (allow = […] grants some)", bare.join(", ")));
    }
    findings.push(Finding::ok(TOPIC, what));
    findings
}
