//! TensorBoard's protocol buffers, as far as they are written. Field numbers and types are those of its `.proto` files.
//!
//! A record holds one [`Event`]. Messages of plugins are encoded in [`PluginData::content`] or in a tensor.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    #[prost(double, tag = "1")]
    pub(crate) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(crate) step: i64,
    #[prost(oneof = "What", tags = "3, 4, 5, 7")]
    pub(crate) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    /// A [`GraphDef`].
    #[prost(bytes = "vec", tag = "4")]
    Graph(Vec<u8>),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}

/// A [`SessionLog::status`]: TensorBoard ignores the events of earlier files from this step on.
pub(crate) const SESSION_START: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(string, tag = "1")]
    pub(crate) tag: String,
    #[prost(message, optional, tag = "9")]
    pub(crate) metadata: Option<Metadata>,
    #[prost(oneof = "Content", tags = "2, 4, 5, 8")]
    pub(crate) content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Content {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "4")]
    Image(Image),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub(crate) plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PluginData {
    #[prost(string, tag = "1")]
    pub(crate) plugin_name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) content: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(int32, tag = "1")]
    pub(crate) height: i32,
    #[prost(int32, tag = "2")]
    pub(crate) width: i32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    pub(crate) colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) png: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(double, tag = "1")]
    pub(crate) min: f64,
    #[prost(double, tag = "2")]
    pub(crate) max: f64,
    #[prost(double, tag = "3")]
    pub(crate) num: f64,
    #[prost(double, tag = "4")]
    pub(crate) sum: f64,
    #[prost(double, tag = "5")]
    pub(crate) sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub(crate) bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) bucket: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int32, tag = "1")]
    pub(crate) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<TensorShape>,
    #[prost(float, repeated, tag = "5")]
    pub(crate) floats: Vec<f32>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(crate) strings: Vec<Vec<u8>>,
}

/// Values of [`Tensor::dtype`].
pub(crate) const FLOAT: i32 = 1;
pub(crate) const STRING: i32 = 7;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

impl TensorShape {
    pub(crate) fn new(sizes: &[usize]) -> Self {
        Self { dim: sizes.iter().map(|&size| Dim { size: size as i64 }).collect() }
    }
}

impl Value {
    /// A value that a plugin shows: the plugin's message, and a tensor unless the message says all.
    pub(crate) fn of_plugin(
        tag: impl Into<String>,
        plugin: &str,
        content: &impl Message,
        tensor: Option<Tensor>,
    ) -> Self {
        let plugin_data = PluginData { plugin_name: plugin.to_owned(), content: content.encode_to_vec() };
        let metadata = Some(Metadata { plugin_data: Some(plugin_data) });
        Self { tag: tag.into(), metadata, content: tensor.map(Content::Tensor) }
    }
}

// The graph.

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeDef>,
    #[prost(message, optional, tag = "4")]
    pub(crate) versions: Option<Versions>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Versions {
    #[prost(int32, tag = "1")]
    pub(crate) producer: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) op: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) input: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) device: String,
    #[prost(btree_map = "string, message", tag = "5")]
    pub(crate) attr: BTreeMap<String, Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(oneof = "AttributeValue", tags = "1, 2")]
    pub(crate) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AttributeValue {
    #[prost(message, tag = "1")]
    List(Shapes),
    #[prost(bytes = "vec", tag = "2")]
    Text(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shapes {
    #[prost(message, repeated, tag = "7")]
    pub(crate) shape: Vec<TensorShape>,
}

// Messages of plugins.

/// The plugin `text` needs nothing but its name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TextPlugin {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PrCurvePlugin {
    #[prost(uint32, tag = "2")]
    pub(crate) num_thresholds: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MeshPlugin {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(int32, tag = "3")]
    pub(crate) content_type: i32,
    #[prost(string, tag = "5")]
    pub(crate) json_config: String,
    #[prost(int32, repeated, tag = "6")]
    pub(crate) shape: Vec<i32>,
    #[prost(uint32, tag = "7")]
    pub(crate) components: u32,
}

/// The message of the plugin `custom_scalars`, which reads the layout from a tensor instead.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Layout {
    #[prost(message, repeated, tag = "2")]
    pub(crate) category: Vec<Category>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Category {
    #[prost(string, tag = "1")]
    pub(crate) title: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) chart: Vec<Chart>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chart {
    #[prost(string, tag = "1")]
    pub(crate) title: String,
    #[prost(oneof = "ChartContent", tags = "2, 3")]
    pub(crate) content: Option<ChartContent>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ChartContent {
    #[prost(message, tag = "2")]
    Multiline(Multiline),
    #[prost(message, tag = "3")]
    Margin(Margin),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Multiline {
    #[prost(string, repeated, tag = "1")]
    pub(crate) tag: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Margin {
    #[prost(message, repeated, tag = "1")]
    pub(crate) series: Vec<MarginSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MarginSeries {
    #[prost(string, tag = "1")]
    pub(crate) value: String,
    #[prost(string, tag = "2")]
    pub(crate) lower: String,
    #[prost(string, tag = "3")]
    pub(crate) upper: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HParamsPlugin {
    #[prost(oneof = "HParamsData", tags = "2, 3, 4")]
    pub(crate) data: Option<HParamsData>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum HParamsData {
    #[prost(message, tag = "2")]
    Experiment(Experiment),
    #[prost(message, tag = "3")]
    SessionStart(SessionStart),
    #[prost(message, tag = "4")]
    SessionEnd(SessionEnd),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Experiment {
    #[prost(message, repeated, tag = "4")]
    pub(crate) hparam_infos: Vec<HParamInfo>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) metric_infos: Vec<MetricInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HParamInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "4")]
    pub(crate) r#type: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) domain_discrete: Option<List>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricInfo {
    #[prost(message, optional, tag = "1")]
    pub(crate) name: Option<MetricName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetricName {
    #[prost(string, tag = "2")]
    pub(crate) tag: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionStart {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) hparams: BTreeMap<String, Setting>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionEnd {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct List {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<Setting>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Setting {
    #[prost(oneof = "SettingKind", tags = "2, 3, 4")]
    pub(crate) kind: Option<SettingKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum SettingKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
}
