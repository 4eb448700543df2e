//! Parquet files made byte by byte, in the compact protocol of Thrift: a field is the step from the field before, its
//! type, and its value.

const I32: u8 = 5;
const I64: u8 = 6;
const BYTES: u8 = 8;
const LIST: u8 = 9;
pub(crate) const STRUCT: u8 = 12;

/// Seven bits in each byte, the lowest first.
pub(crate) fn unsigned(mut n: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

fn signed(n: i64) -> Vec<u8> {
    unsigned((n << 1 ^ n >> 63) as u64)
}

pub(crate) fn number(step: u8, n: i32) -> Vec<u8> {
    [vec![step << 4 | I32], signed(n.into())].concat()
}

pub(crate) fn long(step: u8, n: i64) -> Vec<u8> {
    [vec![step << 4 | I64], signed(n)].concat()
}

fn text(step: u8, text: &str) -> Vec<u8> {
    [&[step << 4 | BYTES][..], &unsigned(text.len() as u64), text.as_bytes()].concat()
}

pub(crate) fn structs(step: u8, elements: &[Vec<u8>]) -> Vec<u8> {
    let ended = elements.iter().flat_map(|element| [&element[..], &[0]].concat());
    [vec![step << 4 | LIST, 0xF0 | STRUCT], unsigned(elements.len() as u64), ended.collect()].concat()
}

/// A group of a schema.
pub(crate) fn group(name: &str, n_members: i32) -> Vec<u8> {
    [number(3, 0), text(1, name), number(1, n_members)].concat()
}

/// A column of 64-bit numbers in a schema.
pub(crate) fn column(name: &str) -> Vec<u8> {
    [number(1, 2), number(2, 0), text(1, name)].concat()
}

/// A file of no rows, with `schema` and other fields behind the known ones.
pub(crate) fn of_schema(schema: &[Vec<u8>], others: &[u8]) -> Vec<u8> {
    whole(b"", &[number(1, 1), structs(1, schema), long(1, 0), structs(1, &[]), others.to_vec()])
}

/// A file of these pages, and of a footer of these fields.
pub(crate) fn whole(pages: &[u8], footer: &[Vec<u8>]) -> Vec<u8> {
    let footer = [footer.concat(), vec![0]].concat();
    [b"PAR1", pages, &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}
