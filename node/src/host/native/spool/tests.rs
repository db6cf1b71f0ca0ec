//! Spooled output: what is kept, what goes to the file, and how the notice reads on.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn fed(folder: &Path, chunks: impl IntoIterator<Item = Vec<u8>>) -> Spool {
    let mut spool = Spool::new(folder, "chappie-1");
    chunks.into_iter().for_each(|chunk| spool.push(&chunk));
    spool
}

fn numbers(last: u32) -> Vec<u8> {
    (1..=last).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

#[test]
fn output_that_fits_is_given_whole_and_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let report = fed(folder.path(), [b"one\ntw".to_vec(), b"o".to_vec()]).finish(TextBudget::WHOLE);
    assert_eq!(report, Report { text: "one\ntwo".into(), lines: 2, bytes: 7, full_output: None, cut: false });
    let report = fed(folder.path(), []).finish(TextBudget::WHOLE);
    assert_eq!((report.text.as_str(), report.lines, report.bytes), ("", 0, 0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn long_output_keeps_head_and_tail_and_says_how_to_read_on() {
    let folder = tempfile::tempdir().unwrap();
    for (last, chunk) in [(5_000, 7), (50_000, 4_096), (50_000, 1 << 20)] {
        let raw = numbers(last);
        let report = fed(folder.path(), raw.chunks(chunk).map(<[u8]>::to_vec)).finish(TextBudget::WHOLE);
        assert!(TextBudget::WHOLE.fits(&report.text));
        assert!(report.cut);
        let path = report.full_output.unwrap();
        assert_eq!(fs::read(&path).unwrap(), raw);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (head, rest) = report.text.split_once("\n[cut: ").unwrap();
        let (notice, tail) = rest.split_once("]\n").unwrap();
        let shown = head.lines().count() as u32;
        assert_eq!(head.as_bytes(), &numbers(shown)[..head.len()]);
        let wanted = serde_json::json!({ "path": path.to_str().unwrap(), "offset": shown + 1 });
        assert!(notice.starts_with(&format!("{last} lines, {} bytes in all", raw.len())), "{notice}");
        assert!(notice.ends_with(&format!("read {wanted}")), "{notice}");
        assert!(raw.ends_with(tail.as_bytes()) && tail.len() > head.len(), "{tail}");
        assert!(tail.starts_with(|c: char| c.is_ascii_digit()) && raw.ends_with(format!("\n{tail}").as_bytes()));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "a name in use gets a number");
}

#[test]
fn one_endless_line_is_cut_inside() {
    let folder = tempfile::tempdir().unwrap();
    let report = fed(folder.path(), vec![vec![b'x'; 100_000]; 4]).finish(TextBudget::WHOLE);
    assert!(TextBudget::WHOLE.fits(&report.text));
    assert!(report.text.contains("[cut: 1 lines, 400000 bytes in all"), "{}", report.text);
    assert!(report.text.contains("\"offset\":1}"));
}

#[test]
fn output_that_shrinks_to_the_budget_needs_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut chunks = vec![b"\x1b[00;1;31m".to_vec(); 7_000];
    chunks.push(b"done".to_vec());
    let report = fed(folder.path(), chunks).finish(TextBudget::WHOLE);
    assert_eq!((report.text.as_str(), report.bytes, report.cut), ("done", 70_004, false));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_progress_line_is_shown_broken_and_numbered_as_the_file_is() {
    let folder = tempfile::tempdir().unwrap();
    let report = fed(folder.path(), [b"1%\r2%\r\ndone".to_vec()]).finish(TextBudget::WHOLE);
    assert_eq!((report.text.as_str(), report.lines), ("1%\n2%\ndone", 2));
    let progress: Vec<u8> = (1..=50_000).flat_map(|n| format!("{n} of 50000\r").into_bytes()).collect();
    let report = fed(folder.path(), [b"begun\n".to_vec(), progress, b"\nTHE-END\n".to_vec()]).finish(TextBudget::WHOLE);
    assert!(TextBudget::WHOLE.fits(&report.text) && !report.text.contains('\r'));
    assert!(report.text.starts_with("begun\n1 of 50000\n2 of 50000\n") && report.text.ends_with("\nTHE-END\n"));
    assert!(report.text.contains("[cut: 3 lines, ") && report.text.contains("\"offset\":2}"), "{}", report.text);
}

#[test]
fn memory_stays_bounded_and_the_file_ends_at_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let mut spool = Spool::new(folder.path(), "chappie-1");
    spool.file_bytes_max = 1_000_000;
    for _ in 0..300 {
        spool.push(&numbers(2_000));
        assert!(spool.head.capacity() + spool.tail.capacity() <= 512 * 1024);
    }
    spool.push(b"THE-END\n");
    let report = spool.finish(TextBudget::WHOLE);
    assert_eq!(report.lines, 600_001);
    assert!(report.text.ends_with("\nTHE-END\n"));
    assert!(report.text.contains("(its first 1000000 bytes only"), "{}", report.text);
    assert_eq!(report.full_output.unwrap().metadata().unwrap().len(), 1_000_000);
}

#[test]
fn a_file_that_cannot_be_made_or_filled_costs_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let not_a_folder = folder.path().join("file");
    fs::write(&not_a_folder, "").unwrap();
    let report = fed(&not_a_folder, [numbers(50_000)]).finish(TextBudget::WHOLE);
    assert!(report.text.contains("the full output was not kept: "), "{}", report.text);
    assert_eq!((report.lines, report.full_output), (50_000, None));

    // A device that is always full stands for a full disk.
    let mut spool = Spool::new(folder.path(), "chappie-1");
    spool.file = Some((OpenOptions::new().write(true).open("/dev/full").unwrap(), folder.path().join("gone")));
    spool.push(&numbers(50_000));
    let report = spool.finish(TextBudget::WHOLE);
    assert!(report.text.contains("No space left on device"), "{}", report.text);
    assert!(report.text.contains("\n50000\n"));
    assert_eq!((report.lines, report.full_output), (50_000, None));
}

#[test]
fn a_tiny_budget_gets_the_brief_notice() {
    let folder = tempfile::tempdir().unwrap();
    let budget = TextBudget { bytes: 200, tokens: 100 };
    let report = fed(folder.path(), [numbers(50_000)]).finish(budget);
    assert!(report.text.contains("[cut: 50000 lines; full output: "), "{}", report.text);
    assert!(!report.text.contains("read {"));
}
