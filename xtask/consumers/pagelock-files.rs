//! A file that is replaced, and a replacement that is dropped before its commit and changes nothing.
use std::io::Write;

use pagelock_files::{NewFile, replace};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    replace("notes.txt", "whole")?;
    let mut unfinished = NewFile::create("notes.txt")?;
    unfinished.write_all(b"half")?;
    drop(unfinished);
    let contents = std::fs::read_to_string("notes.txt")?;
    println!("the file is {contents}");
    assert_eq!(contents, "whole");
    Ok(())
}
