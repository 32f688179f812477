use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use rustix::fs::{CWD, mknodat};

use super::*;

const SECRET: &str = "SECRET";

/// What came of opening `asked`, in one word; a text that names a place of the host fails the test.
fn opening(root: &Root, asked: &str, home: &Path) -> &'static str {
    let failure = match root.resolve(asked).and_then(|path| root.file(&path)) {
        Ok(_) => return "opened",
        Err(failure) => failure,
    };
    let text = failure.to_string();
    assert!(asked.starts_with('/') || !text.contains(home.to_str().unwrap()), "{text}");
    match failure {
        ToolFailure::NotFound { .. } => "not found",
        ToolFailure::Refused { why, .. } => why.mark(),
        ToolFailure::BadArgument(_) => "bad argument",
        other => panic!("{asked}: {other:?}"),
    }
}

#[test]
fn b095_no_words_lead_out_and_nothing_special_is_opened() {
    let home = tempfile::tempdir().unwrap();
    let (work, outside) = (home.path().join("work"), home.path().join("outside"));
    fs::create_dir_all(work.join("notes/deep")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), SECRET).unwrap();
    for name in ["notes/a.md", "notes/deep/b.md", "~x", "back\\slash", "two words", "…"] {
        fs::write(work.join(name), "inside").unwrap();
    }
    symlink(outside.join("secret"), work.join("link")).unwrap();
    symlink("notes/a.md", work.join("inner")).unwrap();
    symlink("nowhere", work.join("dangling")).unwrap();
    symlink(&outside, work.join("linkdir")).unwrap();
    symlink("/proc/self/root", work.join("proc")).unwrap();
    fs::hard_link(outside.join("secret"), work.join("hard")).unwrap();
    mknodat(CWD, work.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = UnixListener::bind(work.join("socket")).unwrap();
    let absolute = outside.join("secret").to_str().unwrap().to_owned();
    let too_long = ["n".repeat(300), "d/".repeat(600), "d/".repeat(65)].join(" | ");
    let mut table = vec![
        ("opened", "notes/a.md | ./notes//a.md | notes/./deep/b.md | ./~x | back\\slash | two words | …"),
        ("directory", " | . | notes | notes/"),
        ("file", "notes/a.md/ | notes/a.md/."),
        ("outside", ".. | ../outside/secret | notes/../../outside/secret | notes/.. | linkdir/../secret"),
        ("outside", "/etc/passwd | //etc/passwd | /proc/self/root/etc/passwd | ~ | ~/.ssh/id_ed25519 | ~root/x"),
        ("outside", &absolute),
        ("link", "link | inner | dangling | linkdir | linkdir/secret | ./linkdir//secret | proc/etc/passwd"),
        ("has a second name elsewhere", "hard"),
        ("fifo", "fifo | fifo/"),
        ("socket", "socket"),
        ("not found", "notes/none.md | notes/a.md/x | ./~ | $HOME/x | NOTES/A.MD | Link | no\u{300}tes/a.md"),
        ("not found", "notes\\..\\..\\outside\\secret | %2e%2e/outside/secret | ．．/outside/secret"),
        ("not found", "․․/outside/secret | ..∕outside∕secret | notes／a.md"),
        ("bad argument", "notes/a.md\0 | notes/a.md\n | notes/\u{202e}dm.a"),
        ("bad argument", &too_long),
    ];
    match mknodat(CWD, work.join("null"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3)) {
        Ok(()) => table.push(("device", "null")),
        Err(errno) => println!("no device in the table, mknod says: {errno}"),
    }
    for (way, root) in Root::by_every_way(&work) {
        for (expected, paths) in &table {
            for asked in paths.split(" | ") {
                assert_eq!(opening(&root, asked, home.path()), *expected, "{asked:?} by {way}");
            }
        }
    }
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(work.join("notes/a.md"), fs::Permissions::from_mode(0o000)).unwrap();
        assert_eq!(opening(&Root::open(&work).unwrap(), "notes/a.md", home.path()), "no permission");
    }
}

/// Mounting needs a mount namespace of its own: the test runs itself once more, within one.
#[test]
fn the_workspace_ends_at_other_mounts() {
    const PLACE: &str = "MIDWATCH_TEST_MOUNTS";
    if let Ok(work) = std::env::var(PLACE) {
        for (way, root) in Root::by_every_way(Path::new(&work)) {
            for asked in ["tmpfs/x", "bind/secret", "file"] {
                assert_eq!(opening(&root, asked, Path::new("/none")), "other mount", "{asked} by {way}");
            }
            assert!(matches!(
                root.dir(&root.resolve("bind").unwrap()),
                Err(ToolFailure::Refused { why: Why::OtherMount, .. })
            ));
        }
        return println!("mounts were refused");
    }
    let home = tempfile::tempdir().unwrap();
    let work = home.path().join("work");
    for dir in ["outside", "work/tmpfs", "work/bind"] {
        fs::create_dir_all(home.path().join(dir)).unwrap();
    }
    fs::write(home.path().join("outside/secret"), SECRET).unwrap();
    fs::write(work.join("file"), "").unwrap();
    let script = "mount -t tmpfs none work/tmpfs && : > work/tmpfs/x && mount --bind outside work/bind \
                  && mount --bind outside/secret work/file || exit 99; exec \"$0\" --exact \"$1\" --nocapture";
    let name = format!("{}::the_workspace_ends_at_other_mounts", module_path!().split_once("::").unwrap().1);
    let ran = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .args([std::env::current_exe().unwrap().into_os_string(), name.into()])
        .current_dir(home.path())
        .env(PLACE, &work)
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {
            assert!(String::from_utf8_lossy(&ran.stdout).contains("mounts were refused"), "{ran:?}");
        }
        Ok(ran) if ran.status.code() == Some(101) => panic!("{}", String::from_utf8_lossy(&ran.stderr)),
        other => println!("skipped, there can be no mounts here: {other:?}"),
    }
}

proptest! {
    #[test]
    fn a_resolved_path_is_in_normal_form_and_stays_so(asked in "[a.~/\\\\ \u{301}\n]{0,12}") {
        let root = Root::open(Path::new("/")).unwrap();
        if let Ok(path) = root.resolve(&asked) {
            let text = path.as_str();
            prop_assert!(text.is_empty() || text.split('/').all(|part| !matches!(part, "" | "." | "..")), "{text:?}");
            let again = root.resolve(&path.shown()).unwrap();
            prop_assert_eq!(again.as_str(), text);
        }
    }
}

#[test]
fn another_directory_in_the_workspaces_place_is_seen_and_a_missing_one_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("workspace");
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("old.md"), "old").unwrap();
    let root = Root::open(&home).unwrap();
    let names = |root: &Root| root.file(&root.resolve("new.md").unwrap()).map(|file| file.bytes);
    assert!(matches!(names(&root), Err(ToolFailure::NotFound { .. })));
    std::fs::rename(&home, folder.path().join("away")).unwrap();
    assert!(matches!(names(&root), Err(ToolFailure::Gone(_))));
    std::fs::create_dir(&home).unwrap();
    std::fs::write(home.join("new.md"), "new").unwrap();
    assert_eq!(names(&root).unwrap(), 3);
}

#[test]
fn numbers_are_written_for_people() {
    assert_eq!([size(0), size(1_023), size(1_536), size(1 << 40)], ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]);
    assert_eq!([grouped(7), grouped(1_200), grouped(1_234_567)], ["7", "1,200", "1,234,567"]);
}
