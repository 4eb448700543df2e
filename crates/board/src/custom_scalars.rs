//! Charts of several curves, in a layout that the user chooses.

use prost::Message;

use crate::error::{Result, ensure};
use crate::proto::{self, Category, ChartContent, Layout, Margin, MarginSeries, Multiline, Value};
use crate::step::Step;
use crate::writer::{SummaryWriter, strings};

/// A chart whose curves come from [`SummaryWriter::add_scalar`].
#[derive(Debug, Clone, PartialEq)]
pub struct Chart(proto::Chart);

impl Chart {
    /// The curves of all tags in one chart. Tags may be regular expressions.
    pub fn multiline(title: impl Into<String>, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let content = ChartContent::Multiline(Multiline { tag: tags.into_iter().map(Into::into).collect() });
        Self(proto::Chart { title: title.into(), content: Some(content) })
    }

    /// A curve inside a band. The tags are those of the curve itself, of the band's lower bound and of its upper bound.
    pub fn margin(title: impl Into<String>, [value, lower, upper]: [&str; 3]) -> Self {
        let [value, lower, upper] = [value, lower, upper].map(str::to_owned);
        let content = ChartContent::Margin(Margin { series: vec![MarginSeries { value, lower, upper }] });
        Self(proto::Chart { title: title.into(), content: Some(content) })
    }
}

impl SummaryWriter {
    /// Sets the charts of TensorBoard's page "Custom Scalars": categories, each with its charts. TensorBoard uses one
    /// layout per run.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) if the layout or a category is empty, or a chart has no curve;
    /// [`Error::Write`](crate::Error::Write).
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{Chart, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// writer.add_custom_scalars(&[
    ///     ("loss", vec![Chart::multiline("both", ["loss/train", "loss/valid"])]),
    ///     ("seeds", vec![Chart::margin("accuracy", ["acc/mean", "acc/least", "acc/most"])]),
    /// ])?;
    /// writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_custom_scalars(&self, layout: &[(&str, Vec<Chart>)]) -> Result<()> {
        for (category, charts) in layout {
            ensure!(!charts.is_empty(), "the category `{category}` has no charts");
            for Chart(chart) in charts {
                let is_empty = matches!(&chart.content, Some(ChartContent::Multiline(lines)) if lines.tag.is_empty());
                ensure!(!is_empty, "the chart `{}` has no curves", chart.title);
            }
        }
        ensure!(!layout.is_empty(), "the layout has no categories");
        let category = |(title, charts): &(&str, Vec<Chart>)| Category {
            title: (*title).to_owned(),
            chart: charts.iter().map(|chart| chart.0.clone()).collect(),
        };
        let layout = Layout { category: layout.iter().map(category).collect() };
        let tensor = strings(vec![layout.encode_to_vec()], &[]);
        let value = Value::of_plugin("custom_scalars__config__", "custom_scalars", &Layout::default(), Some(tensor));
        self.add_value(self.main, value, Step::from(0))
    }
}
