//! Tables: CSV and Parquet.

use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArrayType, DoubleType, Int32Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

pub(super) fn csv() -> Vec<Vec<u8>> {
    let texts = [
        "a,b\n1,2\n3,4\n",
        "\u{feff}length,\"width, cm\",kind\r\n5.1,3.5,0\r\n\r\n4.9,\"3.0\",1",
        "a\tb\n1e3\t-inf\nNaN\t0x10\n",
        "a\n\"\"\n\"1\"\"2\"\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(super) fn parquet() -> Result<Vec<Vec<u8>>> {
    let mut files = Vec::new();
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for compression in [Compression::SNAPPY, Compression::UNCOMPRESSED] {
            for has_dictionary in [false, true] {
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_compression(compression)
                    .set_dictionary_enabled(has_dictionary);
                let plain = if has_dictionary { properties } else { properties.set_encoding(Encoding::PLAIN) };
                files.push(rows(plain.build())?);
            }
        }
    }
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    files.push(rows(
        properties.set_encoding(Encoding::PLAIN).set_column_encoding("i".into(), Encoding::DELTA_BINARY_PACKED).build(),
    )?);
    Ok(files)
}

/// Two row groups of a few rows.
fn rows(properties: WriterProperties) -> Result<Vec<u8>> {
    let schema = "message rows { REQUIRED DOUBLE d; REQUIRED INT32 i; REQUIRED BOOLEAN b; OPTIONAL BYTE_ARRAY t; }";
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(parse_message_type(schema)?), Arc::new(properties))?;
    for n_rows in [5, 3] {
        let mut group = writer.next_row_group()?;
        write(&mut group, n_rows)?;
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

fn write(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, n_rows: usize) -> Result<()> {
    let numbers = 0..n_rows as i32;
    let missing = "a column is missing";
    let mut column = group.next_column()?.context(missing)?;
    let values: Vec<f64> = numbers.clone().map(f64::from).collect();
    column.typed::<DoubleType>().write_batch(&values, None, None)?;
    column.close()?;
    let mut column = group.next_column()?.context(missing)?;
    column.typed::<Int32Type>().write_batch(&numbers.clone().collect::<Vec<_>>(), None, None)?;
    column.close()?;
    let mut column = group.next_column()?.context(missing)?;
    let values: Vec<bool> = numbers.clone().map(|i| i % 2 == 0).collect();
    column.typed::<BoolType>().write_batch(&values, None, None)?;
    column.close()?;
    let mut column = group.next_column()?.context(missing)?;
    let values: Vec<_> = numbers.map(|i| format!("text {i}").into_bytes().into()).collect();
    column.typed::<ByteArrayType>().write_batch(&values, Some(&vec![1; n_rows]), None)?;
    column.close()?;
    Ok(())
}
