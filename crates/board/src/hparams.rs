//! Hyperparameters and metrics of runs, which TensorBoard compares.

use std::collections::BTreeMap;

use crate::array::ToScalar;
use crate::error::{Result, ensure};
use crate::proto::{
    Experiment, HParamInfo, HParamsData, HParamsPlugin, List, MetricInfo, MetricName, SessionEnd, SessionStart,
    Setting, SettingKind, Value,
};
use crate::step::{Step, now};
use crate::writer::{SummaryWriter, check_tag, scalar};

/// TensorBoard's `Status` of a run that succeeded.
const SUCCESS: i32 = 1;

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HParam {
    /// Any number.
    Number(f64),
    /// A name, such as that of an optimizer.
    Text(String),
    /// On or off. (PyTorch writes 1 and 0.)
    Bool(bool),
}

impl HParam {
    fn kind(&self) -> &'static str {
        match self {
            HParam::Number(_) => "a number",
            HParam::Text(_) => "a string",
            HParam::Bool(_) => "true or false",
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),+) => {$(
        impl From<$type> for HParam {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}
from!(f64 => Number, f32 => Number, i32 => Number, &str => Text, String => Text, bool => Bool);

impl From<usize> for HParam {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

/// The settings of a run and the resulting metrics, for [`SummaryWriter::add_hparams`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HParams {
    settings: Vec<(String, HParam, Vec<HParam>)>,
    metrics: Vec<(String, f64)>,
    run_name: Option<String>,
}

impl HParams {
    /// Neither settings nor metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// A setting of the run.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<HParam>) -> Self {
        self.settings.push((name.into(), value.into(), Vec::new()));
        self
    }

    /// A setting of the run, and all values that it can have: PyTorch's `hparam_domain_discrete`.
    pub fn set_one_of<V: Into<HParam>>(
        mut self,
        name: impl Into<String>,
        value: impl Into<HParam>,
        all: impl IntoIterator<Item = V>,
    ) -> Self {
        self.settings.push((name.into(), value.into(), all.into_iter().map(Into::into).collect()));
        self
    }

    /// A metric of the run. Its tag should differ from those of [`add_scalar`](SummaryWriter::add_scalar).
    pub fn metric(mut self, tag: impl Into<String>, value: f64) -> Self {
        self.metrics.push((tag.into(), value));
        self
    }

    /// The name of the run's folder inside the writer's folder; by default the time.
    pub fn run_name(mut self, name: impl Into<String>) -> Self {
        self.run_name = Some(name.into());
        self
    }
}

impl SummaryWriter {
    /// Adds a run with its settings and metrics, which TensorBoard compares with other runs. The run is a folder inside
    /// the writer's folder.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Argument`](crate::Error::Argument) if a name is empty or used
    /// twice, a setting's possible values are of another type than its value, or the name of the run leads out of the
    /// writer's folder; [`Error::Create`](crate::Error::Create) if the run's file cannot be made.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{HParams, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// for (run, lr) in [0.1, 0.01].into_iter().enumerate() {
    ///     let settings = HParams::new().run_name(format!("run{run}")).set("lr", lr).set("optimizer", "sgd");
    ///     writer.add_hparams(&settings.metric("hparam/accuracy", 0.9), 0)?;
    /// }
    /// writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_hparams(&self, hparams: &HParams, step: impl Into<Step>) -> Result<()> {
        check(hparams)?;
        let step = step.into().timed();
        let run_name = hparams.run_name.clone().unwrap_or_else(|| now().to_string());
        let start = hparams.settings.iter().map(|(name, value, _)| (name.clone(), setting(value)));
        let data = [
            ("_hparams_/experiment", HParamsData::Experiment(experiment(hparams))),
            (
                "_hparams_/session_start_info",
                HParamsData::SessionStart(SessionStart { hparams: start.collect::<BTreeMap<_, _>>() }),
            ),
            ("_hparams_/session_end_info", HParamsData::SessionEnd(SessionEnd { status: SUCCESS })),
        ];
        let settings =
            data.map(|(tag, data)| Value::of_plugin(tag, "hparams", &HParamsPlugin { data: Some(data) }, None));
        let metrics = hparams.metrics.iter().map(|(tag, value)| Ok(scalar(tag, value.to_scalar()?)));
        let values = settings.into_iter().map(Ok).chain(metrics).collect::<Result<Vec<_>>>()?;
        self.add_each(&run_name, values, step)
    }
}

fn check(hparams: &HParams) -> Result<()> {
    for (at, (name, value, all)) in hparams.settings.iter().enumerate() {
        ensure!(!name.is_empty(), "a setting has no name");
        let is_duplicate = hparams.settings[..at].iter().any(|(other, ..)| other == name);
        ensure!(!is_duplicate, "the setting `{name}` is given twice");
        let other = all.iter().map(HParam::kind).find(|kind| *kind != value.kind());
        ensure!(
            other.is_none(),
            "the setting `{name}` is {}, but one of its possible values is {}",
            value.kind(),
            other.unwrap_or_default()
        );
    }
    hparams.metrics.iter().try_for_each(|(tag, _)| check_tag(tag))
}

fn setting(value: &HParam) -> Setting {
    let kind = match value {
        HParam::Number(number) => SettingKind::Number(*number),
        HParam::Text(text) => SettingKind::Text(text.clone()),
        HParam::Bool(value) => SettingKind::Bool(*value),
    };
    Setting { kind: Some(kind) }
}

fn experiment(hparams: &HParams) -> Experiment {
    let info = |(name, value, all): &(String, HParam, Vec<HParam>)| HParamInfo {
        name: name.clone(),
        r#type: match value {
            HParam::Text(_) => 1,
            HParam::Bool(_) => 2,
            HParam::Number(_) => 3,
        },
        domain_discrete: (!all.is_empty()).then(|| List { values: all.iter().map(setting).collect() }),
    };
    let metric = |(tag, _): &(String, f64)| MetricInfo { name: Some(MetricName { tag: tag.clone() }) };
    let hparam_infos = hparams.settings.iter().map(info).collect();
    Experiment { hparam_infos, metric_infos: hparams.metrics.iter().map(metric).collect() }
}
