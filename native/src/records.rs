//! Records of the commit log (docs/formats/commit-log.md).

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const TOPIC_LENGTH_V1_MAXIMUM: usize = 127;
const TOPIC_LENGTH_MAXIMUM: usize = 255;
const PROPERTIES_LENGTH_MAXIMUM: usize = 32_767;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const CRC_PROPERTY_SIZE: usize = 20;
const FIXED_SIZE: usize = 83; // of V1, without the addresses of its hosts

/// A message as it is recorded.
pub struct Record<'a> {
    topic: &'a str,
    queue_number: i32,
    body: &'a [u8],
    properties: &'a [u8],
    born_ms: i64,
    born_host: Host,
    store_host: Host,
    system_flag: i32,
    flag: i32,
    queue_offset: i64,
    pub physical_offset: i64,
    stored_ms: i64,
    crc_property: bool,
    pub size: usize,
}

impl<'a> Record<'a> {
    /// From the fields of an `EncodedMessage`. An error for what no record can hold.
    pub fn of(
        fields: &'a Bound<'_, PyTuple>,
        queue_offset: i64,
        physical_offset: i64,
        stored_ms: i64,
        crc_property: bool,
    ) -> PyResult<Self> {
        let mut record = Record {
            topic: fields.get_borrowed_item(0)?.extract()?,
            queue_number: fields.get_borrowed_item(1)?.extract()?,
            body: fields.get_borrowed_item(2)?.extract()?,
            properties: fields.get_borrowed_item(3)?.extract()?,
            born_ms: fields.get_borrowed_item(4)?.extract()?,
            born_host: Host::of(&*fields.get_borrowed_item(5)?)?,
            store_host: Host::of(&*fields.get_borrowed_item(6)?)?,
            system_flag: fields.get_borrowed_item(7)?.extract()?,
            flag: fields.get_borrowed_item(9)?.extract()?,
            queue_offset,
            physical_offset,
            stored_ms,
            crc_property,
            size: 0,
        };
        if record.topic.is_empty() || record.topic.len() > TOPIC_LENGTH_MAXIMUM {
            return Err(PyValueError::new_err("the topic's length"));
        }
        if record.properties_length() > PROPERTIES_LENGTH_MAXIMUM {
            return Err(PyValueError::new_err("the properties' length"));
        }
        record.size = FIXED_SIZE
            + usize::from(record.is_v2())
            + record.topic.len()
            + record.body.len()
            + record.properties_length()
            + record.born_host.address().len()
            + record.store_host.address().len();
        if i32::try_from(record.size).is_err() {
            return Err(PyValueError::new_err("the record's size"));
        }
        Ok(record)
    }

    /// Into room of its size.
    pub fn write(&self, room: &mut [u8]) {
        let mut out = Cursor { room, at: 0 };
        out.put(&(self.size as i32).to_be_bytes());
        out.put(&if self.is_v2() { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
        out.put(&checksum(self.body).to_be_bytes());
        out.put(&self.queue_number.to_be_bytes());
        out.put(&self.flag.to_be_bytes());
        out.put(&self.queue_offset.to_be_bytes());
        out.put(&self.physical_offset.to_be_bytes());
        out.put(&self.whole_system_flag().to_be_bytes());
        out.put(&self.born_ms.to_be_bytes());
        self.born_host.write(&mut out);
        out.put(&self.stored_ms.to_be_bytes());
        self.store_host.write(&mut out);
        out.put(&[0; 12]); // reconsume times, prepared transaction offset
        out.put(&(self.body.len() as i32).to_be_bytes());
        out.put(self.body);
        if self.is_v2() {
            out.put(&(self.topic.len() as u16).to_be_bytes());
        } else {
            out.put(&[self.topic.len() as u8]);
        }
        out.put(self.topic.as_bytes());
        out.put(&(self.properties_length() as u16).to_be_bytes());
        out.put(self.properties);
        if self.crc_property {
            out.put_crc_property();
        }
        debug_assert_eq!(out.at, self.size);
    }

    fn is_v2(&self) -> bool {
        self.topic.len() > TOPIC_LENGTH_V1_MAXIMUM
    }

    fn properties_length(&self) -> usize {
        self.properties.len() + if self.crc_property { CRC_PROPERTY_SIZE } else { 0 }
    }

    fn whole_system_flag(&self) -> i32 {
        let mut flag = self.system_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
        if self.born_host.is_v6 {
            flag |= BORN_HOST_V6;
        }
        if self.store_host.is_v6 {
            flag |= STORE_HOST_V6;
        }
        flag
    }
}

struct Host {
    bytes: [u8; 16],
    is_v6: bool,
    port: i32,
}

impl Host {
    fn of(host: &Bound<'_, PyAny>) -> PyResult<Self> {
        let host = host.cast::<PyTuple>()?;
        let address = host.get_borrowed_item(0)?;
        let address: &[u8] = address.extract()?;
        if address.len() != 4 && address.len() != 16 {
            return Err(PyValueError::new_err("the length of a host's address"));
        }
        let mut bytes = [0; 16];
        bytes[..address.len()].copy_from_slice(address);
        Ok(Host { bytes, is_v6: address.len() == 16, port: host.get_borrowed_item(1)?.extract()? })
    }

    fn address(&self) -> &[u8] {
        &self.bytes[..if self.is_v6 { 16 } else { 4 }]
    }

    fn write(&self, out: &mut Cursor<'_>) {
        out.put(self.address());
        out.put(&self.port.to_be_bytes());
    }
}

/// Where the next bytes of a record go.
struct Cursor<'a> {
    room: &'a mut [u8],
    at: usize,
}

impl Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.room[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    /// A CRC of the record so far as its last property: ten digits, the lowest first.
    fn put_crc_property(&mut self) {
        let mut value = checksum(&self.room[..self.at]);
        self.put(b"__CRC32#\x01");
        for _ in 0..10 {
            self.put(&[b'0' + (value % 10) as u8]);
            value /= 10;
        }
        self.put(&[2]);
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}
