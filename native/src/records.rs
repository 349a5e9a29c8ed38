//! Records of the commit log (docs/formats/commit-log.md).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const TOPIC_LENGTH_V1_MAXIMUM: usize = 127;
const TOPIC_LENGTH_MAXIMUM: usize = 255;
const PROPERTIES_LENGTH_MAXIMUM: usize = 32_767;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const CRC_PROPERTY_SIZE: usize = 20;

/// Add the record of a message.
pub fn encode(
    fields: &Bound<'_, PyTuple>,
    queue_offset: i64,
    physical_offset: i64,
    stored_ms: i64,
    crc_property: bool,
    out: &mut Vec<u8>,
) -> PyResult<()> {
    let topic = fields.get_borrowed_item(0)?;
    let topic: &str = topic.extract()?;
    let queue_number: i32 = fields.get_borrowed_item(1)?.extract()?;
    let body = fields.get_borrowed_item(2)?;
    let body = body.cast::<PyBytes>()?;
    let body = body.as_bytes();
    let properties = fields.get_borrowed_item(3)?;
    let properties = properties.cast::<PyBytes>()?;
    let properties = properties.as_bytes();
    let born_ms: i64 = fields.get_borrowed_item(4)?.extract()?;
    let born_host = fields.get_borrowed_item(5)?;
    let store_host = fields.get_borrowed_item(6)?;
    let system_flag: i32 = fields.get_borrowed_item(7)?.extract()?;
    if topic.is_empty() || topic.len() > TOPIC_LENGTH_MAXIMUM {
        return Err(PyValueError::new_err("the topic's length"));
    }
    let properties_length = properties.len() + if crc_property { CRC_PROPERTY_SIZE } else { 0 };
    if properties_length > PROPERTIES_LENGTH_MAXIMUM {
        return Err(PyValueError::new_err("the properties' length"));
    }

    let start = out.len();
    out.extend_from_slice(&[0; 4]); // its size, known at the end
    let magic = if topic.len() > TOPIC_LENGTH_V1_MAXIMUM { MAGIC_V2 } else { MAGIC_V1 };
    out.extend_from_slice(&magic.to_be_bytes());
    out.extend_from_slice(&checksum(body).to_be_bytes());
    out.extend_from_slice(&queue_number.to_be_bytes());
    out.extend_from_slice(&0i32.to_be_bytes()); // flag
    out.extend_from_slice(&queue_offset.to_be_bytes());
    out.extend_from_slice(&physical_offset.to_be_bytes());
    let flag_at = out.len();
    out.extend_from_slice(&[0; 4]); // the system flag, known with the hosts
    out.extend_from_slice(&born_ms.to_be_bytes());
    let mut system_flag = system_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
    if put_host(&born_host, out)? {
        system_flag |= BORN_HOST_V6;
    }
    out.extend_from_slice(&stored_ms.to_be_bytes());
    if put_host(&store_host, out)? {
        system_flag |= STORE_HOST_V6;
    }
    out[flag_at..flag_at + 4].copy_from_slice(&system_flag.to_be_bytes());
    out.extend_from_slice(&[0; 12]); // reconsume times, prepared transaction offset
    out.extend_from_slice(&(body.len() as i32).to_be_bytes());
    out.extend_from_slice(body);
    if magic == MAGIC_V1 {
        out.push(topic.len() as u8);
    } else {
        out.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    }
    out.extend_from_slice(topic.as_bytes());
    out.extend_from_slice(&(properties_length as u16).to_be_bytes());
    out.extend_from_slice(properties);
    let size = out.len() - start + if crc_property { CRC_PROPERTY_SIZE } else { 0 };
    let size = i32::try_from(size).map_err(|_| PyValueError::new_err("the record's size"))?;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    if crc_property {
        put_crc_property(start, out);
    }
    Ok(())
}

/// Whether it is an IPv6 address.
fn put_host(host: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> PyResult<bool> {
    let host = host.cast::<PyTuple>()?;
    let address = host.get_borrowed_item(0)?;
    let address = address.cast::<PyBytes>()?;
    let address = address.as_bytes();
    let port: i32 = host.get_borrowed_item(1)?.extract()?;
    if address.len() != 4 && address.len() != 16 {
        return Err(PyValueError::new_err("the length of a host's address"));
    }
    out.extend_from_slice(address);
    out.extend_from_slice(&port.to_be_bytes());
    Ok(address.len() == 16)
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}

/// A CRC of the record from `start` on as its last property: ten digits, the lowest first.
fn put_crc_property(start: usize, out: &mut Vec<u8>) {
    let mut value = checksum(&out[start..]);
    out.extend_from_slice(b"__CRC32#\x01");
    for _ in 0..10 {
        out.push(b'0' + (value % 10) as u8);
        value /= 10;
    }
    out.push(2);
}
