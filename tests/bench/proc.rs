//! What the kernel says of a process, and of this machine.

use std::path::Path;

/// Mebibytes.
pub(crate) const MIB: f64 = (1 << 20) as f64;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident, all of it.
    pub(crate) rss_mib: f64,
    /// Its own: heap, stacks, written data. The rest is the binary's pages, which the kernel can drop.
    pub(crate) anonymous_mib: f64,
}

pub(crate) fn memory(pid: u32) -> Memory {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mib = |key: &str| number(&status, key) as f64 / 1024.0;
    Memory { rss_mib: mib("VmRSS:"), anonymous_mib: mib("RssAnon:") }
}

/// How often the process's threads have gone to sleep of their own accord, which is how often they were woken.
pub(crate) fn wakeups(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    // A thread that ends meanwhile has no file any more.
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    status.map(|status| number(&status, "voluntary_ctxt_switches:")).sum()
}

/// Processor time since its start, in milliseconds; the kernel counts in hundredths of a second.
pub(crate) fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

pub(crate) fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

pub(crate) fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn number(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Cores, kernel and file system, in words that name no machine.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: Vec<&str> = release.split(['.', '-']).take(2).collect();
    let system = file_system(&std::env::temp_dir()).unwrap_or_else(|| "unknown".to_owned());
    format!("{cores} cores, Linux {}, homes on {system}", kernel.join("."))
}

/// The type of the file system that holds `path`: the mount with the longest matching path.
fn file_system(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = fields.filter(|fields| fields.len() > 2 && path.starts_with(fields[1]));
    holding.max_by_key(|fields| fields[1].len()).map(|fields| fields[2].to_owned())
}
