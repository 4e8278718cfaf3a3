//! `metaq log`: damage of each kind is found, two nodes are compared, and nothing is changed by looking.

use anyhow::{Context, Result, ensure};
use metaq_harness::pair::{slave_site, start_slave, wait_level};
use metaq_harness::process::{Site, binary_path};
use metaq_harness::raw::Raw;
use metaq_wire::RecordHeader;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A run of the tool.
struct Ran {
    code: Option<i32>,
    out: String,
    said: String,
}

fn metaq(words: &[&str]) -> Result<Ran> {
    let output = Command::new(binary_path("metaq")?).args(words).stdin(Stdio::null()).output()?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ran { code: output.status.code(), out: text(&output.stdout), said: text(&output.stderr) })
}

/// The report of `log verify`, and that table and JSON agree about the outcome.
fn verify(data: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let data = data.display().to_string();
    let words = [&["log", "verify", "--data-path", &data], more].concat();
    let (json, table) = (metaq(&[&words[..], &["--format", "json"]].concat())?, metaq(&words)?);
    let report: Value = serde_json::from_str(&json.out).with_context(|| json.said.clone())?;
    let last = table.out.lines().last().unwrap_or_default();
    ensure!(table.code == json.code, "{}", table.out);
    ensure!(last == report["next"], "the last line says what to do: {}", table.out);
    Ok((json.code, report))
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(name)
}

/// A copy of the partition of five segments that the original wrote: they begin at 0, 8332, 16913, 25544 and 33914.
fn copied() -> Result<(TempDir, PathBuf)> {
    let scratch = tempfile::tempdir()?;
    let directory = scratch.path().join("test-0");
    fs::create_dir(&directory)?;
    for entry in fs::read_dir(golden("data-clean/data/test-0"))? {
        let entry = entry?;
        fs::write(directory.join(entry.file_name()), fs::read(entry.path())?)?;
    }
    Ok((scratch, directory))
}

fn segment(directory: &Path, base: u64) -> PathBuf {
    directory.join(format!("{base:020}.meta"))
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = fs::read(path)?;
    change(&mut bytes);
    Ok(fs::write(path, bytes)?)
}

/// Names, lengths and times of change of all that is below a directory.
fn state(directory: &Path) -> Result<BTreeMap<PathBuf, (u64, i64, i64)>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            all.extend(state(&path)?);
        }
        all.insert(path, (metadata.len(), metadata.mtime(), metadata.mtime_nsec()));
    }
    Ok(all)
}

fn text(value: &Value) -> String {
    value.to_string()
}

#[test]
fn what_the_original_wrote_is_whole_and_stays_as_it_is() -> Result<()> {
    for name in ["clean", "crash"] {
        let data = golden(&format!("data-{name}/data"));
        let before = state(&data)?;
        let (code, report) = verify(&data, &[])?;
        assert_eq!(code, Some(0), "{report}");
        let manifest: Value = serde_json::from_slice(&fs::read(golden(&format!("manifest-{name}.json")))?)?;
        for told in manifest["partitions"].as_array().context("partitions")? {
            let partition = format!("{}-{}", told["topic"].as_str().context("topic")?, told["partition"]);
            let lines = report["partitions"].as_array().context("partitions")?;
            let line = lines.iter().find(|line| line["partition"] == *partition).context(partition.clone())?;
            let messages = told["messages"].as_array().context("messages")?;
            assert_eq!(line["messages"], messages.len(), "{line}");
            assert_eq!((&line["first_offset"], &line["end_offset"]), (&told["min"], &told["max"]), "{line}");
            let id = |place: Option<&Value>| place.and_then(|told| told["id"].as_str()?.parse::<i64>().ok());
            assert_eq!(
                (line["first_id"].as_i64(), line["last_id"].as_i64()),
                (id(messages.first()), id(messages.last()))
            );
            let cat = format!("cat '{}'/*.meta | sha256sum", data.join(partition).display());
            let sum = Command::new("sh").args(["-c", &cat]).output()?;
            let sha256 = line["sha256"].as_str().context("sha256")?;
            assert!(String::from_utf8(sum.stdout)?.starts_with(sha256), "{line}");
        }
        assert_eq!(state(&data)?, before);
    }
    Ok(())
}

/// What is done to the files, the exit code of `log verify`, and a part of what it says.
type Case = (fn(&Path) -> Result<()>, i32, &'static str);

#[test]
fn damage_of_each_kind_is_found() -> Result<()> {
    let cases: [Case; 12] = [
        (
            |at| change(&segment(at, 0), |bytes| bytes[50] ^= 1),
            1,
            "1158 bytes from offset 20 to 1178 are no message: its checksum is",
        ),
        (|at| change(&segment(at, 0), |bytes| bytes[20] = 0x80), 1, "the length of a record is -"),
        (|at| change(&segment(at, 0), |bytes| bytes[21] ^= 2), 1, "its header says 132210 bytes of body"),
        (|at| change(&segment(at, 0), |bytes| bytes[24] ^= 1), 1, "its checksum is"),
        (
            |at| change(&segment(at, 0), |bytes| bytes[20..1178].fill(0)),
            1,
            "20 zero bytes are not a message; whole ones follow",
        ),
        (|at| change(&segment(at, 25544), |bytes| bytes[8000..].fill(0)), 1, "00000000000000025544.meta: its last"),
        (
            |at| change(&segment(at, 25544), |bytes| bytes.truncate(8369)),
            1,
            "the segment at 25544 ends at 33913 and the next begins at 33914",
        ),
        (|at| Ok(fs::remove_file(segment(at, 8332))?), 1, "the segment at 0 ends at 8332 and the next begins at 16913"),
        (|at| Ok(fs::rename(segment(at, 8332), segment(at, 8333))?), 1, "ends at 8332 and the next begins at 8333"),
        (
            |at| Ok(fs::rename(segment(at, 8332), at.join("8332-copy.meta"))?),
            1,
            "8332-copy.meta is not named by an offset",
        ),
        (|at| change(&segment(at, 33914), |bytes| bytes.truncate(2003)), 0, "a torn tail: "),
        (
            |at| change(&segment(at, 33914), |bytes| bytes.resize(10_000, 0)),
            0,
            "a torn tail: 7996 bytes from offset 35918 on",
        ),
    ];
    for (damage, code, part) in cases {
        let (scratch, directory) = copied()?;
        damage(&directory)?;
        let before = state(scratch.path())?;
        let (ended, report) = verify(scratch.path(), &[])?;
        assert_eq!(ended, Some(code), "{part}: {report}");
        let line = &report["partitions"][0];
        let (told, silent) = if code == 1 { ("faults", "notes") } else { ("notes", "faults") };
        assert!(text(&line[told]).contains(part) && !text(&line[silent]).contains(part), "{part}: {report}");
        assert_eq!(report["verdict"], if code == 1 { "damaged" } else { "good" });
        assert_eq!(state(scratch.path())?, before);
    }
    Ok(())
}

#[test]
fn two_directories_are_compared() -> Result<()> {
    let (scratch, directory) = copied()?;
    let (other, there) = copied()?;
    let against = other.path().display().to_string();
    let compare = || -> Result<_> {
        let (code, mut report) = verify(scratch.path(), &["--against", &against])?;
        Ok((code, report["partitions"][0]["against"].take(), report))
    };
    let (code, line, _) = compare()?;
    assert_eq!((code, &line["result"]), (Some(0), &"same".into()));
    // One that lacks its last file, and one that has not all of its last message: both behind.
    change(&segment(&there, 33914), |bytes| bytes.truncate(2003))?;
    let (code, line, report) = compare()?;
    assert_eq!((code, &line["result"]), (Some(1), &"ahead".into()), "{report}");
    let behind = line["bytes"].as_u64().context("bytes")?;
    assert!(text(&report["next"]).contains("switch-over.md"), "{report}");
    fs::remove_file(segment(&directory, 33914))?;
    let (code, line, _) = compare()?;
    assert_eq!((code, &line["result"], line["bytes"].as_u64()), (Some(1), &"behind".into(), Some(2004 - behind)));
    // Another byte within a message that is whole on both sides.
    change(&segment(&there, 16913), |bytes| {
        let header = RecordHeader::parse(bytes.first_chunk().expect("a header")).expect("a header");
        let body = 20..20 + header.length as usize;
        bytes[body.start] ^= 1;
        let checksum = RecordHeader::of(header.id, header.flag, &bytes[body]).checksum;
        bytes[4..8].copy_from_slice(&checksum.to_be_bytes());
    })?;
    let (code, line, report) = compare()?;
    assert_eq!((code, &line["result"], &line["at"]), (Some(1), &"differs".into(), &(16913 + 4).into()), "{report}");
    assert!(text(&line).contains("begins at 16913") && text(&report["next"]).contains("different"), "{report}");
    // What retention has taken on one side is no difference.
    let (one, at) = copied()?;
    fs::remove_file(segment(&at, 0))?;
    fs::remove_file(segment(&at, 8332))?;
    let (whole, _) = copied()?;
    let (code, report) = verify(one.path(), &["--against", &whole.path().display().to_string()])?;
    assert_eq!(code, Some(0), "{report}");
    assert!(text(&report).contains("compared from 16913"), "{report}");
    // A partition that only one has.
    fs::create_dir(whole.path().join("test-1"))?;
    fs::write(whole.path().join("test-1/00000000000000000000.meta"), "")?;
    fs::create_dir(one.path().join("test-2"))?;
    fs::write(one.path().join("test-2/00000000000000000000.meta"), "")?;
    let (code, report) = verify(one.path(), &["--against", &whole.path().display().to_string()])?;
    assert_eq!(code, Some(0), "nothing was put into either: {report}");
    fs::write(whole.path().join("test-1/00000000000000000000.meta"), "x")?;
    let (code, report) = verify(one.path(), &["--against", &whole.path().display().to_string()])?;
    assert!(code == Some(1) && report["only_there"] == serde_json::json!(["test-1"]), "{report}");
    Ok(())
}

#[test]
fn running_brokers_are_looked_at_and_compared() -> Result<()> {
    let small = |site: &mut Site| {
        site.set("maxSegmentSize", "4096");
    };
    let master_site = slave_site(small)?;
    let master = master_site.start_master(&[])?;
    let slave_site = slave_site(small)?;
    let slave = start_slave(&slave_site, 0, &master)?;
    let mut raw = Raw::connect(&master.address)?;
    for i in 0..200 {
        raw.put("test", 0, &vec![b'x'; 10 + i])?.stored()?;
    }
    wait_level(&master, &slave, "test", 1)?;
    let ini = master_site.ini_path().display().to_string();
    let run = metaq(&["log", "verify", "--config", &ini, "--against-broker", &slave.address, "--format", "json"])?;
    let report: Value = serde_json::from_str(&run.out).with_context(|| run.said.clone())?;
    assert_eq!(run.code, Some(0), "{report}");
    assert_eq!((&report["paths"][0]["broker"], &report["paths"][0]["pid"]), (&"running".into(), &master.pid().into()));
    let partitions = report["partitions"].as_array().context("partitions")?;
    let line = partitions.iter().find(|line| line["partition"] == "test-0").context("test-0")?;
    assert_eq!((&line["messages"], &line["against"]["result"]), (&200.into(), &"same".into()));
    let (code, report) =
        verify(&slave_site.data(), &["--topic", "test", "--against", &master_site.data().display().to_string()])?;
    assert!(code == Some(0) && text(&report["partitions"]).contains("\"same\""), "{report}");
    // A message on its way: the half of it is neither damage nor a torn tail.
    let last = report["partitions"][0]["end_offset"].as_u64().context("end")?;
    let path =
        fs::read_dir(slave_site.data().join("test-0"))?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
    let newest = path.iter().max().context("a segment")?;
    std::io::Write::write_all(&mut File::options().append(true).open(newest)?, &[0, 0, 0, 9, 1])?;
    let (code, report) = verify(&slave_site.data(), &["--topic", "test"])?;
    assert!(
        code == Some(0) && text(&report).contains(&format!("5 bytes from offset {last} on are no whole message yet")),
        "{report}"
    );
    slave.kill()?;
    // What is called so and is no partition's directory: of a topic that there is, and of one that there is not.
    for (name, code) in [("core-1234", 0), ("test-0.old", 0), ("test-0", 1)] {
        let data = slave_site.data();
        if name == "test-0" {
            fs::rename(data.join(name), data.join("aside"))?;
        }
        fs::write(data.join(name), "")?;
        let ini = slave_site.ini_path().display().to_string();
        let ran = metaq(&["log", "verify", "--config", &ini])?;
        assert!(ran.code == Some(code) && ran.out.contains(name), "{name}: {}{}", ran.out, ran.said);
        fs::remove_file(data.join(name))?;
    }
    fs::rename(slave_site.data().join("aside"), slave_site.data().join("test-0"))?;
    let (code, report) = verify(&slave_site.data(), &["--topic", "test", "--partition", "0"])?;
    assert!(code == Some(0) && text(&report).contains("a torn tail: 5 bytes"), "{report}");
    // In a container it cannot be known.
    assert!(report["paths"][0]["broker"] == "stopped" || report["paths"][0]["broker"] == "unknown", "{report}");
    drop(raw);
    master.stop()?;
    Ok(())
}

#[test]
fn a_broker_with_other_messages_is_found_out() -> Result<()> {
    let (one, two) = (Site::new()?, Site::new()?);
    let (broker, other) = (one.start_master(&[])?, two.start_master(&[])?);
    let (mut here, mut there) = (Raw::connect(&broker.address)?, Raw::connect(&other.address)?);
    here.put("test", 0, b"one")?.stored()?;
    there.put("test", 0, b"two")?.stored()?;
    let (code, report) = verify(&one.data(), &["--topic", "test", "--against-broker", &other.address])?;
    let against = &report["partitions"][0]["against"];
    assert_eq!((code, &against["result"]), (Some(1), &"differs".into()), "{report}");
    assert!(against["at"].as_u64().is_some_and(|at| at < 23), "{report}");
    here.put("test", 0, b"more")?.stored()?;
    // A partition with messages that is not among the files.
    let (scratch, _) = copied()?;
    fs::rename(scratch.path().join("test-0"), scratch.path().join("test-1"))?;
    let (code, report) = verify(scratch.path(), &["--against-broker", &broker.address])?;
    assert!(code == Some(1) && report["only_there"] == serde_json::json!(["test-0"]), "{report}");
    assert_eq!(report["partitions"][0]["against"]["result"], "absent");
    let (code, report) = verify(&one.data(), &["--topic", "test", "--against-broker", &broker.address])?;
    assert_eq!((code, &report["partitions"][0]["against"]["result"]), (Some(0), &"same".into()), "{report}");
    Ok(())
}

/// Which both have from a master that no longer had what lay there.
#[test]
fn the_same_gap_is_no_difference() -> Result<()> {
    let (scratch, directory) = copied()?;
    fs::remove_file(segment(&directory, 8332))?;
    fs::write(directory.join("00000000000000016913.meta.gap"), "")?;
    let site = Site::new()?;
    let there = site.data().join("test-0");
    fs::create_dir_all(&there)?;
    for entry in fs::read_dir(&directory)? {
        let entry = entry?;
        fs::copy(entry.path(), there.join(entry.file_name()))?;
    }
    let broker = site.start_master(&["--accept-gap"])?;
    let against = ["--topic", "test", "--against-broker", &broker.address];
    let (code, report) = verify(scratch.path(), &against)?;
    assert_eq!((code, &report["partitions"][0]["against"]["result"]), (Some(0), &"same".into()), "{report}");
    // What lies there in these files alone is one.
    fs::copy(golden("data-clean/data/test-0/00000000000000008332.meta"), segment(&directory, 8332))?;
    let (code, report) = verify(scratch.path(), &against)?;
    let found = &report["partitions"][0]["against"];
    assert_eq!((code, &found["result"], &found["at"]), (Some(1), &"differs".into(), &8332.into()), "{report}");
    Ok(())
}

#[test]
fn a_wrong_place_says_which_is_right() -> Result<()> {
    let (scratch, directory) = copied()?;
    let (data, here) = (scratch.path().display().to_string(), directory.display().to_string());
    let first = segment(&directory, 0).display().to_string();
    let empty = tempfile::tempdir()?;
    let nothing = empty.path().display().to_string();
    let two = tempfile::tempdir()?;
    for name in ["test-0", "test-1", "other-0"] {
        fs::create_dir(two.path().join(name))?;
    }
    let several = two.path().display().to_string();
    let cases: [(&[&str], &str); 10] = [
        (&["verify", "--data-path", &here], "--topic test --partition 0"),
        (&["verify", "--data-path", "/nowhere"], "/nowhere is no directory"),
        (&["verify", "--data-path", &data, "--topic", "orders"], "no partition of the topic 'orders'"),
        (&["verify", "--data-path", &data, "--against", &data], "name the other one"),
        (&["verify", "--config", "nowhere.ini"], "--data-path DIR"),
        (&["verify", "--data-path", &data, "--against", &nothing], "no partition in"),
        (&["dump", &here], "is a directory"),
        (&["dump", "--data-path", &several], "--partition N: there is other-0, test-0, test-1"),
        (&["dump", "--data-path", &several, "--topic", "test"], "--partition N: there is test-0, test-1"),
        (&["dump", "--config", "nowhere.ini"], "--data-path DIR"),
    ];
    for (words, part) in cases {
        let ran = metaq(&[&["log"], words].concat())?;
        assert!(ran.code == Some(1) && ran.said.contains(part), "{words:?}: {}", ran.said);
    }
    assert_eq!(metaq(&["log", "dump", "--data-path", &data])?.code, Some(0), "the only one there");
    assert_eq!(metaq(&["log", "dump", &first, "--raw"])?.code, Some(0));
    Ok(())
}

fn dump(words: &[&str]) -> Result<(Vec<Value>, String)> {
    let ran = metaq(&[&["log", "dump", "--format", "json"], words].concat())?;
    ensure!(ran.code == Some(0), "{words:?}: {}", ran.said);
    let lines = ran.out.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok((lines, ran.said))
}

#[test]
fn every_message_is_dumped_as_it_was_stored() -> Result<()> {
    let data = golden("data-clean/data").display().to_string();
    let manifest: Value = serde_json::from_slice(&fs::read(golden("manifest-clean.json"))?)?;
    let told = manifest["partitions"][0]["messages"].as_array().context("messages")?;
    let of_test = ["--data-path", &data, "--topic", "test", "--partition", "0"];
    let (lines, _) = dump(&of_test)?;
    assert_eq!(lines.len(), told.len());
    for (line, told) in lines.iter().zip(told) {
        for key in ["offset", "length", "checksum", "flag"] {
            assert_eq!(line[key], told[key], "{line}");
        }
        assert_eq!(
            (line["id"].to_string(), &line["payload_bytes"]),
            (told["id"].as_str().context("id")?.to_owned(), &told["payload_length"])
        );
        assert_eq!(line["checksum_ok"], true);
    }
    // From the middle of a message on it is the next.
    let (some, said) = dump(&[&of_test[..], &["--from", "8333", "--limit", "3", "--hex"]].concat())?;
    let next = lines.iter().position(|line| line["offset"] == 8332).context("a message at 8332")? + 1;
    let offsets = |lines: &[Value]| lines.iter().map(|line| line["offset"].clone()).collect::<Vec<_>>();
    assert_eq!(offsets(&some), offsets(&lines[next..next + 3]));
    assert!(
        said.contains(&format!("no message begins at 8333; the next begins at {}", lines[next]["offset"])),
        "{said}"
    );
    assert!(some.iter().all(|line| line["payload_hex"].is_string() && line["payload"].is_null()));
    let (none, said) = dump(&[&of_test[..], &["--from", "99999"]].concat())?;
    assert!(none.is_empty() && said.contains("the files end at 35918"), "{said}");
    Ok(())
}

#[test]
fn what_was_set_aside_and_what_is_damaged_is_dumped() -> Result<()> {
    let (_scratch, directory) = copied()?;
    let whole = fs::read(segment(&directory, 8332))?;
    let header = RecordHeader::parse(whole.first_chunk().context("a header")?)?;
    let second = header.record_bytes();
    let aside = directory.join("00000000000000008332.meta.diverged-1").display().to_string();
    fs::write(&aside, &whole[second as usize..whole.len() - 1])?;
    let (lines, said) = dump(&[&aside])?;
    assert!(said.contains("--base"), "{said}");
    assert_eq!(lines[0]["offset"], 0);
    let (based, said) = dump(&[&aside, "--base", &(8332 + second).to_string()])?;
    assert_eq!((&based[0]["offset"], said.as_str()), (&(8332 + second).into(), ""));
    let torn = based.last().context("a line")?;
    assert!(
        torn["is_tail"] == true && torn["damaged_bytes"].is_u64() && text(torn).contains("bytes of body"),
        "{torn}"
    );
    // What 'metaq put' would make several messages of is told.
    let lines_in_one = [b"one".as_slice(), b"t\nw\no"]
        .map(|body| [&RecordHeader::of(header.id, 0, body).encode()[..], body].concat())
        .concat();
    fs::write(&aside, lines_in_one)?;
    let raw = metaq(&["log", "dump", &aside, "--raw"])?;
    assert_eq!((raw.code, raw.out.as_str()), (Some(0), "one\nt\nw\no\n"));
    assert!(raw.said.contains("1 payloads hold line feeds"), "{}", raw.said);
    change(&segment(&directory, 0), |bytes| bytes[50] ^= 1)?;
    let first = segment(&directory, 0).display().to_string();
    let (lines, _) = dump(&[&first, "--limit", "2"])?;
    let offsets: Vec<_> = lines.iter().map(|line| line["offset"].as_u64().unwrap_or(u64::MAX)).collect();
    assert_eq!((&offsets[..], &lines[1]["damaged_bytes"]), (&[0, 20, 1178][..], &1158.into()), "{lines:?}");
    let table = metaq(&["log", "dump", &first, "--limit", "2"])?;
    assert!(table.out.contains("DAMAGED: 1158 bytes are no message (its checksum is"), "{}", table.out);
    Ok(())
}
