//! Weights in safetensors files, mapped into memory: one file, or several with an index.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest as _, Sha256};

use super::config::LlamaConfig;
use super::error::{ModelError, TensorProblem, WeightsProblem};
use super::fields::{Fields, read_json};
use super::header::{self, Entry};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a model folder. Opening it reads headers alone; a tensor's bytes are read when they are asked for.
#[derive(Debug)]
pub struct Weights {
    shards: Vec<Shard>,
    /// In which shard each tensor is, if an index says so; else all are in the one shard.
    index: Option<BTreeMap<String, usize>>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
    /// Where the tensors' bytes begin.
    data: usize,
    tensors: BTreeMap<String, Entry>,
}

/// One tensor, as it lies in its file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    path: &'a Path,
    name: &'a str,
    bytes: &'a [u8],
    format: Format,
}

/// How the numbers of a tensor are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Format {
    /// The upper half of an `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Weights {
    /// Opens `model.safetensors`, or all files that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// The first file that is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let single = folder.join(SINGLE);
        if single.exists() {
            return Ok(Self { shards: vec![Shard::open(&single)?], index: None });
        }
        let path = folder.join(INDEX);
        if !path.exists() {
            let others = std::fs::read_dir(folder).map_err(|error| ModelError::io(folder, error))?.flatten();
            let torch =
                others.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|ending| ending == "bin" || ending == "pth"));
            let hint = if torch { "PyTorch's own files are not read: convert them to safetensors" } else { "fetch the model's weights" };
            return Err(ModelError::Missing { folder: folder.to_owned(), file: format!("{SINGLE} or {INDEX}"), hint });
        }
        Self::open_index(folder, &path)
    }

    fn open_index(folder: &Path, path: &Path) -> Result<Self, ModelError> {
        let value = read_json(path)?;
        let fields = Fields::new(path, &value)?;
        let map = fields.get("weight_map").and_then(|map| map.as_object()).filter(|map| !map.is_empty());
        let map = map.ok_or_else(|| fields.error("weight_map", "must be an object of tensor names and files"))?;
        let (mut shards, mut places, mut index) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (tensor, file) in map {
            // A name of a file, not a way out of the folder.
            let file = file.as_str().filter(|file| Path::new(file).file_name().is_some_and(|name| name == *file));
            let file =
                file.ok_or_else(|| fields.error(&format!("weight_map.{tensor}"), "must be the name of a file in the same folder"))?;
            let place = match places.get(file) {
                Some(&place) => place,
                None => {
                    let shard = folder.join(file);
                    if !shard.exists() {
                        let hint = "the index names it: fetch the missing part of the weights";
                        return Err(ModelError::Missing { folder: folder.to_owned(), file: file.to_owned(), hint });
                    }
                    shards.push(Shard::open(&shard)?);
                    places.insert(file, shards.len() - 1);
                    shards.len() - 1
                }
            };
            let shard = &shards[place];
            if !shard.tensors.contains_key(tensor) {
                return Err(ModelError::tensor(&shard.path, tensor, TensorProblem::NotInShard));
            }
            index.insert(tensor.clone(), place);
        }
        Ok(Self { shards, index: Some(index) })
    }

    /// Bytes of all files. O(files).
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.map.len() as u64).sum()
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.shard(name).is_some_and(|shard| shard.tensors.contains_key(name))
    }

    /// The names of all tensors, in order. O(tensors).
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let indexed = self.index.iter().flat_map(|index| index.keys());
        let single = self.shards.first().filter(|_| self.index.is_none());
        indexed.chain(single.into_iter().flat_map(|shard| shard.tensors.keys())).map(String::as_str)
    }

    /// What tells the model from others: a SHA-256 digest of its configuration, and of each tensor's name, format, shape, and first and last
    /// bytes. A model fine-tuned from another differs; a damaged number in the middle of a tensor does not show. O(tensors).
    #[must_use]
    pub fn fingerprint(&self, config: &LlamaConfig) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(format!("{config:?}\n"));
        for name in self.names() {
            let Some((shard, entry)) = self.shard(name).and_then(|shard| Some((shard, shard.tensors.get(name)?))) else { continue };
            let bytes = shard.map[shard.data..].get(entry.bytes()).unwrap_or_default();
            digest.update(format!("{name} {} {:?}\n", entry.dtype, entry.shape));
            digest.update(&bytes[..bytes.len().min(64)]);
            digest.update(&bytes[bytes.len().saturating_sub(64)..]);
        }
        digest.finalize().into()
    }

    /// If the configuration says that the head is the embedding, and there is a head all the same, it must be the same: who wrote the folder meant one
    /// of the two. O(numbers of the head), if there is one.
    ///
    /// # Errors
    /// It is another one.
    pub fn check_tied(&self, config: &LlamaConfig) -> Result<(), ModelError> {
        let head = "lm_head.weight";
        if !config.tied || !self.contains(head) {
            return Ok(());
        }
        let shape = [config.vocab_size, config.hidden_size];
        let (head, embedding) = (self.tensor(head, &shape)?, self.tensor("model.embed_tokens.weight", &shape)?);
        let same = head.format == embedding.format && head.bytes == embedding.bytes;
        if same { Ok(()) } else { Err(ModelError::tensor(head.path, head.name, TensorProblem::NotTied)) }
    }

    /// The tensor of this name, which must have this shape.
    ///
    /// # Errors
    /// It is missing, or its shape or format is another.
    pub fn tensor<'a>(&'a self, name: &'a str, shape: &[usize]) -> Result<Tensor<'a>, ModelError> {
        let shard = self.shard(name);
        let path = shard.or_else(|| self.shards.first()).map_or_else(|| Path::new(SINGLE), |shard| &shard.path);
        let error = |problem| ModelError::tensor(path, name, problem);
        let (shard, info) = shard.and_then(|shard| Some((shard, shard.tensors.get(name)?))).ok_or_else(|| error(TensorProblem::Missing))?;
        if info.shape != shape {
            return Err(error(TensorProblem::Shape { expected: shape.to_vec(), found: info.shape.clone() }));
        }
        let format = match info.dtype.as_str() {
            "BF16" => Format::Bf16,
            "F16" => Format::F16,
            "F32" => Format::F32,
            other => return Err(error(TensorProblem::Dtype(other.to_owned()))),
        };
        let bytes = shard.map[shard.data..].get(info.bytes()).unwrap_or_default();
        Ok(Tensor { path, name, bytes, format })
    }

    fn shard(&self, name: &str) -> Option<&Shard> {
        match &self.index {
            None => self.shards.first(),
            Some(index) => self.shards.get(*index.get(name)?),
        }
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, ModelError> {
        let file = File::open(path).map_err(|error| ModelError::io(path, error))?;
        let error = |problem| ModelError::Weights { path: path.to_owned(), problem };
        let found = file.metadata().map_err(|error| ModelError::io(path, error))?.len();
        if found < 8 {
            return Err(error(WeightsProblem::Short(found)));
        }
        // SAFETY: the map is read only. Whoever writes to the file meanwhile changes numbers, or (cutting it off) ends the process, as with
        // every program that maps its model; lengths and offsets are not read from the map again.
        #[allow(unsafe_code, reason = "mapping a file has no safe form")]
        let map = unsafe { Mmap::map(&file) }.map_err(|error| ModelError::io(path, error))?;
        let (data, tensors) = header::parse(&map).map_err(error)?;
        Ok(Self { path: path.to_owned(), map, data, tensors })
    }
}

impl<'a> Tensor<'a> {
    /// How its numbers are written.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Its numbers, exactly. O(numbers).
    ///
    /// # Errors
    /// One of them is not finite.
    pub fn to_f32(self) -> Result<Vec<f32>, ModelError> {
        let numbers: Vec<f32> = match self.format {
            Format::Bf16 => self.halves().map(from_bf16).collect(),
            Format::F16 => self.halves().map(from_f16).collect(),
            Format::F32 => self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        };
        self.check(numbers.iter().position(|number| !number.is_finite()))?;
        Ok(numbers)
    }

    /// Its numbers as they are written, if that is [`Format::Bf16`]. O(numbers).
    ///
    /// # Errors
    /// One of them is not finite.
    pub fn to_bf16(self) -> Result<Option<Vec<u16>>, ModelError> {
        if self.format != Format::Bf16 {
            return Ok(None);
        }
        let numbers: Vec<u16> = self.halves().collect();
        self.check(numbers.iter().position(|number| !from_bf16(*number).is_finite()))?;
        Ok(Some(numbers))
    }

    fn halves(&self) -> impl Iterator<Item = u16> + use<'a> {
        self.bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }

    fn check(&self, bad: Option<usize>) -> Result<(), ModelError> {
        bad.map_or(Ok(()), |index| Err(ModelError::tensor(self.path, self.name, TensorProblem::NotFinite { index })))
    }
}

/// The number that a bf16 stands for.
#[must_use]
#[inline]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bf16 nearest to a finite number, ties to even.
#[must_use]
pub fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    // A finite number rounds at most up to infinity.
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The number that an IEEE half stands for.
fn from_f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    match exponent {
        // Zero and numbers below the normal ones: a fraction of 2^-14.
        0 => f32::from_bits(sign | (fraction as f32 * (1.0 / 16_777_216.0)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::{from_bf16, from_f16, to_bf16};

    #[test]
    fn halves_stand_for_their_numbers() {
        let cases = [
            (0, 0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (1, 5.960_464_5e-8),
            (0x83ff, -6.097_555e-5),
        ];
        for (bits, number) in cases {
            assert_eq!(from_f16(bits), number, "{bits:#x}");
        }
        assert!(from_f16(0x7c00).is_infinite() && from_f16(0x7e00).is_nan());
    }

    #[test]
    fn bf16_rounds_to_the_nearest_and_ties_to_even() {
        assert_eq!(from_bf16(to_bf16(1.0)), 1.0);
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
    }
}
