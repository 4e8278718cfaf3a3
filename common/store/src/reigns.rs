//! The reigns of this data directory, in `.metaq/lineage`: whole files only, with a checksum, read when somebody asks.

use crate::disk::{Disk, replace_file};
use crate::errors::OpenError;
use crate::texts::Form;
use metaq_types::Lineage;
use std::io;
use std::path::Path;

const FORM: Form = Form {
    word: "metaq-lineage",
    format: 1,
    // What a damaged file costs, and the way out.
    advice: "restore it from a copy, or remove it: the node then joins as one that remembers nothing, and its last \
             records are compared instead",
};

pub(crate) fn read(path: &Path) -> Result<Lineage, OpenError> {
    let Some(text) = FORM.read(path)? else { return Ok(Lineage::default()) };
    let damaged = |reason: &str| FORM.damaged(path, reason);
    let (body, checksum) = text
        .strip_suffix('\n')
        .and_then(|text| text.rfind('\n').map(|end| text.split_at(end + 1)))
        .ok_or_else(|| damaged("it has no checksum line"))?;
    if checksum != format!("{:08x}", crc32fast::hash(body.as_bytes())) {
        return Err(damaged("its checksum does not fit"));
    }
    let head = FORM.head();
    let reigns = body.strip_prefix(&*head).and_then(|rest| rest.strip_prefix('\n'));
    let reigns = reigns.ok_or_else(|| damaged(&format!("it does not begin with '{head}'")))?;
    reigns.parse().map_err(|error| damaged(&format!("{error}")))
}

pub(crate) fn write(disk: &dyn Disk, path: &Path, lineage: &Lineage) -> io::Result<()> {
    let body = format!("{}\n{lineage}", FORM.head());
    let checksum = crc32fast::hash(body.as_bytes());
    replace_file(disk, path, format!("{body}{checksum:08x}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OsDisk;
    use std::fs;

    #[test]
    fn a_lineage_is_kept_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lineage");
        assert_eq!(read(&path).unwrap(), Lineage::default());
        let lineage: Lineage = "epoch 3 node a began 5\nstart t-0 7\n".parse().unwrap();
        write(&OsDisk, &path, &lineage).unwrap();
        assert_eq!(read(&path).unwrap(), lineage);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert!(read(&path).is_err(), "byte {at}");
        }
    }
}
