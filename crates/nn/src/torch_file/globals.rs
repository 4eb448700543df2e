//! [`Global`]: the functions and types that a pickle may name. All others are refused.

use pagelock_tensor::DType;

/// The function or type that a name in a pickle means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    Counter,
    Size,
    Device,
    Encode,
    ByteArray,
    Set,
    Parameter,
    RebuildTensor,
    RebuildTensorV2,
    RebuildTensorV3,
    RebuildParameter,
    RebuildParameterWithState,
    RebuildFromType,
    /// `torch.Tensor`, or an older type of one element type, such as `torch.FloatTensor`.
    TensorType,
    /// A storage type, such as `torch.FloatStorage`.
    Storage(Elements),
    /// A value such as `torch.float32`.
    DType(&'static str),
}

/// The element type of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    Of(DType),
    /// Bytes; the tensors that use the storage give the element type.
    Untyped,
    /// A type that Pagelock's tensors do not have, by PyTorch's name.
    Unknown(&'static str),
}

const STORAGES: [(&str, Elements); 18] = [
    ("FloatStorage", Elements::Of(DType::F32)),
    ("DoubleStorage", Elements::Of(DType::F64)),
    ("HalfStorage", Elements::Of(DType::F16)),
    ("BFloat16Storage", Elements::Of(DType::BF16)),
    ("LongStorage", Elements::Of(DType::I64)),
    ("IntStorage", Elements::Of(DType::I32)),
    ("ByteStorage", Elements::Of(DType::U8)),
    ("BoolStorage", Elements::Of(DType::Bool)),
    ("UntypedStorage", Elements::Untyped),
    ("CharStorage", Elements::Unknown("int8")),
    ("ShortStorage", Elements::Unknown("int16")),
    ("ComplexFloatStorage", Elements::Unknown("complex64")),
    ("ComplexDoubleStorage", Elements::Unknown("complex128")),
    ("QInt8Storage", Elements::Unknown("qint8")),
    ("QUInt8Storage", Elements::Unknown("quint8")),
    ("QInt32Storage", Elements::Unknown("qint32")),
    ("QUInt4x2Storage", Elements::Unknown("quint4x2")),
    ("QUInt2x4Storage", Elements::Unknown("quint2x4")),
];

/// The element types of PyTorch, by name.
const DTYPES: &str = "float32 float64 float16 bfloat16 int64 int32 uint8 bool int8 int16 uint16 uint32 uint64 complex32 \
    complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu qint8";

impl Global {
    /// `None` for a name that is not on the list.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("collections", "Counter") => Self::Counter,
            ("torch", "Size") => Self::Size,
            ("torch", "device") => Self::Device,
            ("_codecs", "encode") => Self::Encode,
            ("builtins" | "__builtin__", "bytearray") => Self::ByteArray,
            ("builtins" | "__builtin__", "set") => Self::Set,
            ("torch.nn.parameter", "Parameter") => Self::Parameter,
            ("torch._utils", "_rebuild_tensor") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensorV2,
            ("torch._utils", "_rebuild_tensor_v3") => Self::RebuildTensorV3,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch._utils", "_rebuild_parameter_with_state") => Self::RebuildParameterWithState,
            ("torch._tensor", "_rebuild_from_type_v2") => Self::RebuildFromType,
            ("torch.storage", "UntypedStorage") => Self::Storage(Elements::Untyped),
            ("torch", "Tensor") => Self::TensorType,
            ("torch", name) => return Self::in_torch(name),
            _ => return None,
        })
    }

    fn in_torch(name: &str) -> Option<Self> {
        let storage = STORAGES.iter().find(|(known, _)| *known == name).map(|(_, elements)| Self::Storage(*elements));
        let tensor = name.strip_suffix("Tensor").map(|kind| format!("{kind}Storage"));
        let is_tensor = tensor.is_some_and(|storage| STORAGES.iter().any(|(known, _)| *known == storage));
        let dtype = DTYPES.split(' ').find(|known| *known == name).map(Self::DType);
        storage.or(is_tensor.then_some(Self::TensorType)).or(dtype)
    }

    /// The element type with this name.
    pub(super) fn dtype_of(name: &'static str) -> Elements {
        use DType::{BF16, Bool, F16, F32, F64, I32, I64, U8};
        let known = [F32, F64, F16, BF16, I64, I32, U8, Bool].into_iter().find(|dtype| dtype.name() == name);
        known.map_or(Elements::Unknown(name), Elements::Of)
    }
}

/// PyTorch's name for the storages of an element type.
pub(super) fn storage_name(dtype: DType) -> &'static str {
    let named = STORAGES.iter().find(|(_, elements)| *elements == Elements::Of(dtype));
    named.map_or("UntypedStorage", |(name, _)| name)
}
