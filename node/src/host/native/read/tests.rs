//! `read` against real files: what is shown, what is left out, and how a reader gets on.

use std::{fmt::Write as _, os::unix::fs::symlink, time::Instant};

use serde_json::Value;

use super::*;
use crate::{
    budget::TextBudget,
    host::native::{
        edit,
        testing::{World, context, object, text},
    },
};

async fn read(world: &World, arguments: Value) -> ToolOutput {
    run(object(arguments), &world.env, &context()).await
}

async fn read_file(world: &World, name: &str) -> ToolOutput {
    read(world, json!({"path": name})).await
}

fn world_with(name: &str, content: &[u8]) -> World {
    let world = World::new();
    fs::write(world.env.cwd.join(name), content).unwrap();
    world
}

/// The arguments of the call that a notice advises first, if any.
fn advised(said: &str) -> Option<Value> {
    let call = said.rsplit_once("\n[").and_then(|(_, notice)| notice.split_once("read {"))?.1;
    let end = call.find('}')?;
    serde_json::from_str(&format!("{{{}}}", &call[..end])).ok()
}

#[tokio::test]
async fn a_small_file_is_shown_whole_and_without_notice() {
    let world = world_with("f", "one\ntwo é\n".as_bytes());
    let output = read_file(&world, "f").await;
    assert_eq!((text(&output), output.is_error), ("one\ntwo é\n", false));
    let details = output.details.unwrap();
    assert_eq!((&details["totalLines"], &details["next"], &details["size"]), (&json!(2), &Value::Null, &json!(11)));
    assert_eq!(text(&read(&world, json!({"path": "f", "offset": 2.0, "limit": 5})).await), "two é\n");
}

#[tokio::test]
async fn a_limit_is_kept_and_the_next_call_named() {
    let lines: String = (1..=50_001).map(|n| format!("{n}\n")).collect();
    let world = world_with("n", lines.as_bytes());
    let output = read(&world, json!({"path": "n", "offset": 25_000, "limit": 1})).await;
    let said = text(&output);
    assert!(said.starts_with("25000\n[Lines 25000-25000 shown; the file has 50001 lines and 288900 bytes."), "{said}");
    assert_eq!(advised(said), Some(json!({"path": "n", "offset": 25_001, "limit": 1})));
    let end = read(&world, json!({"path": "n", "offset": 50_001, "limit": 1})).await;
    assert_eq!(text(&end), "50001\n");
}

#[tokio::test]
async fn pages_that_follow_the_notices_give_the_whole_file() {
    let mut lines = String::new();
    for n in 0..4_000 {
        let _ = writeln!(lines, "{n}: let value_{n} = compute(\"é {}\");", "ab ".repeat(n % 40));
    }
    let world = world_with("big.rs", lines.as_bytes());
    let (mut whole, mut arguments, mut pages) = (String::new(), json!({"path": "big.rs"}), 0);
    loop {
        let output = read(&world, arguments).await;
        let said = text(&output);
        assert!(!output.is_error && TextBudget::WHOLE.fits(said));
        pages += 1;
        match advised(said) {
            Some(next) => {
                whole.push_str(&said[..said.rfind("\n[").unwrap() + 1]);
                arguments = next;
            }
            None => break whole.push_str(said),
        }
    }
    assert!(whole == lines, "{} of {} bytes", whole.len(), lines.len());
    assert!(lines.len() / pages > 5_000, "{} bytes a page", lines.len() / pages);
}

#[tokio::test]
async fn dev_08_a_pipe_is_named_and_holds_nobody() {
    let world = world_with("q", b"ok\n");
    rustix::fs::mkfifoat(rustix::fs::CWD, world.env.cwd.join("p"), 0o600.into()).unwrap();
    let (pipe, file) = tokio::join!(read_file(&world, "p"), read_file(&world, "q"));
    assert!(pipe.is_error && text(&pipe).contains("p: is a named pipe (FIFO), not a file"), "{pipe:?}");
    assert_eq!(text(&file), "ok\n");
    assert_eq!(text(&read_file(&world, "q").await), "ok\n");
}

#[tokio::test]
async fn dev_09_a_line_of_200_000_bytes_is_read_to_its_end_in_20_calls() {
    let world = world_with("long", format!("{}\ntail-7\n", "x".repeat(200_000)).as_bytes());
    let output = read_file(&world, "long").await;
    let said = text(&output);
    assert!(said.starts_with("xxx") && said.len() <= 20_000, "content and structuredContent both carry it");
    assert!(
        said.contains("[Line 1 is cut after byte ") && said.contains(" of 200000"),
        "{}",
        &said[said.len() - 300..]
    );
    assert!(said.contains("the file has 2 lines and 200008 bytes"));
    let (mut seen, mut calls, mut output) = (0, 1, output);
    while let Some(next) = advised(text(&output)) {
        let column = next["column"].as_u64().unwrap();
        assert!(column > seen, "nothing new");
        seen = column;
        output = read(&world, next).await;
        calls += 1;
    }
    assert!(text(&output).ends_with("x\ntail-7\n"), "{output:?}");
    assert!(calls <= 20, "{calls} calls");
    assert_eq!(text(&read(&world, json!({"path": "long", "offset": 2})).await), "tail-7\n");
}

#[tokio::test]
async fn a_last_line_that_is_cut_names_no_next_line() {
    let world = world_with("long", "y".repeat(300_000).as_bytes());
    let output = read_file(&world, "long").await;
    let said = text(&output);
    let notice = &said[said.find('[').unwrap()..];
    assert!(notice.contains("the file has 1 line and 300000 bytes. Read on: read {"), "{notice}");
    assert!(!notice.contains("Next line"), "{notice}");
}

#[tokio::test]
async fn dev_10_what_is_named_a_picture_and_is_none_says_what_it_is() {
    let world = world_with("fake.png", br#"<svg xmlns="http://www.w3.org/2000/svg"/>"#);
    let mut noise = b"\x89PNG\r\n\x1a\n".to_vec();
    noise.extend((0..2_048_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8));
    fs::write(world.env.cwd.join("noise.png"), noise).unwrap();
    fs::write(world.env.cwd.join("empty.jpg"), "").unwrap();
    fs::write(world.env.cwd.join("zip.gif"), b"PK\x03\x04\x14\0\0\0").unwrap();
    for (name, said, is_error) in [
        ("fake.png", "Named as a PNG image, but it holds an SVG drawing (XML text)", false),
        ("empty.jpg", "[empty.jpg is empty: 0 bytes, so it is no JPEG image]", false),
        ("noise.png", "begins as a PNG image of 2056 bytes, but it cannot be decoded", true),
        (
            "zip.gif",
            "is a zip archive (or a document or package made of one) although it is named as a GIF image",
            true,
        ),
    ] {
        let output = read_file(&world, name).await;
        assert!(text(&output).contains(said), "one text and no image: {output:?}");
        assert_eq!(output.is_error, is_error, "{name}");
    }
}

#[tokio::test]
async fn pictures_are_shown_by_what_they_are() {
    let world = World::new();
    let picture = image::RgbImage::from_pixel(30, 20, image::Rgb([200, 10, 10]));
    let path = world.env.cwd.join("photo.jpg");
    picture.save_with_format(&path, ImageFormat::Png).unwrap();
    let output = read_file(&world, "photo.jpg").await;
    let [Part::Text(said), Part::Image { mime: "image/png", bytes }] = output.parts.as_slice() else {
        panic!("{output:?}")
    };
    assert_eq!(bytes, &fs::read(&path).unwrap());
    let size = bytes.len();
    assert_eq!(said, &format!("photo.jpg: PNG image, 30x20 pixels, {size} bytes. It is named as a JPEG image."));
    let large = image::RgbImage::from_fn(2_500, 100, |x, y| image::Rgb([x as u8, y as u8, 0]));
    large.save_with_format(world.env.cwd.join("wide.bmp"), ImageFormat::Bmp).unwrap();
    let output = read_file(&world, "wide.bmp").await;
    let [Part::Text(said), Part::Image { mime: "image/png", .. }] = output.parts.as_slice() else {
        panic!("{output:?}")
    };
    assert!(said.ends_with("Shown as PNG at 2000x80."), "{said}");
}

#[tokio::test]
async fn form_that_is_not_shown_is_named() {
    let world = world_with("bom", b"\xef\xbb\xbfa\r\nb\n");
    let output = read_file(&world, "bom").await;
    assert!(text(&output).starts_with("a\nb\n[Begins with a UTF-8 byte order mark, not shown"), "{output:?}");
    assert!(text(&output).contains("[Line ends are mixed, CRLF and LF, shown as LF"), "{output:?}");
    fs::write(world.env.cwd.join("latin"), b"x = 1\n# caf\xe9\n").unwrap();
    let output = read_file(&world, "latin").await;
    let said = text(&output);
    assert!(!output.is_error && said.starts_with("x = 1\n# caf\u{fffd}\n[Not UTF-8 (perhaps Latin-1"), "{said}");
    let edits = json!({"path": "latin", "edits": [{"oldText": "x = 1", "newText": "x = 2"}]});
    let edited = edit::run(object(edits), &world.env, &context()).await;
    assert!(!edited.is_error, "as the notice said: {edited:?}");
    assert_eq!(fs::read(world.env.cwd.join("latin")).unwrap(), b"x = 2\n# caf\xe9\n");
}

#[tokio::test]
async fn what_has_no_text_is_named_and_not_shown() {
    let world = world_with("prog", b"\x7fELF\x02\x01\x01\0\0\0");
    fs::write(world.env.cwd.join("wide"), b"\xff\xfea\0").unwrap();
    fs::create_dir(world.env.cwd.join("dir")).unwrap();
    symlink("loop", world.env.cwd.join("loop")).unwrap();
    fs::write(world.env.cwd.join("two"), "a\nb").unwrap();
    fs::write(world.env.cwd.join("empty"), "").unwrap();
    for (arguments, said) in [
        (json!({"path": "prog"}), "prog: is an ELF program or library, 10 bytes"),
        (json!({"path": "wide"}), "wide: is text in UTF-16LE, 4 bytes; read does not show it. Convert it"),
        (json!({"path": "dir"}), "dir: is a folder, not a file. List it with `ls`"),
        (json!({"path": "/dev/zero"}), "/dev/zero: is a device"),
        (json!({"path": "absent"}), "absent: does not exist (at "),
        (json!({"path": "loop"}), "loop: symbolic links lead in a circle"),
        (json!({"path": ""}), "`path` is empty"),
        (json!({"path": "a\u{0}"}), "NUL"),
        (json!({"path": "n".repeat(5_000)}), "system takes at most"),
        (json!({"path": "two", "offset": 3}), "two: offset 3 is beyond the end: the file has 2 lines"),
        (
            json!({"path": "two", "offset": 2, "column": 3}),
            "two: column 3 is beyond the end of line 2, which has 1 bytes",
        ),
        (json!({"path": "empty", "offset": 2}), "empty: offset 2 is beyond the end: the file has 0 lines"),
        (json!({"path": "two", "offset": 0}), "`offset`: expected a whole number of at least 1, found 0"),
        (json!({"path": "two", "limit": "3"}), "`limit`: expected a whole number"),
        (json!({"path": "two", "lines": 3}), "unknown argument `lines`"),
    ] {
        let output = read(&world, arguments).await;
        assert!(output.is_error && text(&output).contains(said), "{said}: {output:?}");
    }
    assert!(!read_file(&world, "empty").await.is_error);
}

#[tokio::test]
async fn a_file_of_ten_gib_is_shown_at_once() {
    let world = world_with("huge", "first\n".repeat(60_000).as_bytes());
    let file = File::options().write(true).open(world.env.cwd.join("huge")).unwrap();
    file.set_len(10 << 30).expect("the folder for temporary files takes a file of 10 GiB of which nothing is written");
    let begun = Instant::now();
    let output = read_file(&world, "huge").await;
    let said = text(&output);
    assert!(
        said.starts_with("first\n") && said.contains("an uncounted number of lines and 10737418240 bytes"),
        "{said}"
    );
    assert!(begun.elapsed().as_secs() < 5, "it was not looked through");
    let middle = read(&world, json!({"path": "huge", "offset": 60_000, "limit": 1})).await;
    assert!(text(&middle).starts_with("first\n["), "{middle:?}");
}

#[tokio::test]
async fn files_made_up_by_the_system_are_read() {
    let world = World::new();
    let output = read_file(&world, "/proc/self/status").await;
    assert!(!output.is_error && text(&output).contains("Pid:"), "{output:?}");
}

#[tokio::test]
async fn every_budget_is_kept_and_moves_on() {
    let long = format!("{}\r\n{}\nend", "é".repeat(3_000), "word ".repeat(900));
    let world = world_with("f", long.as_bytes());
    for members in [1, 3, 8, 40, 128] {
        let mut context = context();
        context.budget = TextBudget::WHOLE.share(members);
        let mut arguments = json!({"path": "f"});
        for _ in 0..6 {
            let output = run(object(arguments.clone()), &world.env, &context).await;
            let said = text(&output);
            assert!(!output.is_error && context.budget.fits(said), "{members}: {said}");
            let Some(mut next) = advised(said) else { break };
            next["path"] = json!("f");
            assert_ne!(next, arguments, "{members}");
            arguments = next;
        }
    }
    let mut context = context();
    context.budget = TextBudget { bytes: 0, tokens: 0 };
    assert!(run(object(json!({"path": "f"})), &world.env, &context).await.is_error);
}

#[tokio::test]
async fn a_page_can_begin_inside_a_character() {
    let world = world_with("f", "ééé\n".as_bytes());
    assert_eq!(text(&read(&world, json!({"path": "f", "column": 2})).await), "éé\n");
    let last = read(&world, json!({"path": "f", "column": 7})).await;
    assert_eq!(text(&last), "\n");
}

#[tokio::test]
async fn what_a_conversation_read_is_remembered() {
    let world = world_with("f", b"one\n");
    symlink("f", world.env.cwd.join("link")).unwrap();
    let mut context = context();
    context.reader = Some("chat:a".to_owned());
    run(object(json!({"path": "link"})), &world.env, &context).await;
    let real = fs::canonicalize(world.env.cwd.join("f")).unwrap();
    let state = Fingerprint::of(&fs::metadata(&real).unwrap());
    assert_eq!(world.env.seen.last(Some("chat:a"), &real), Some(state));
}

#[tokio::test]
async fn a_cancelled_read_of_a_large_file_ends() {
    let world = world_with("f", &vec![b'x'; usize::try_from(INLINE).unwrap() + 1]);
    let context = context();
    context.cancel.cancel();
    let output = run(object(json!({"path": "f", "offset": 2})), &world.env, &context).await;
    assert!(output.is_error && text(&output).contains("cancelled"), "{output:?}");
}
