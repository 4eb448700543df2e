//! Spans of the crate `tracing`, made of the activities that profiles record.

use std::cell::RefCell;

use pagelock_tensor::profiler::{self, Category, Observed, Observer};
use tracing::span::EnteredSpan;
use tracing::{debug_span, trace_span};

/// Makes spans of the crate `tracing` for operations, modules and other activities until the result is dropped. A
/// subscriber can show them beside the spans of the rest of a program.
///
/// Their target is `pagelock`. Spans of the level `TRACE` are `operation` and `backward`. Spans of the level `DEBUG`
/// are `module`, `loader`, `optimizer` and `user` ([`record_function`](profiler::record_function)). Each span has a
/// field `name`, such as `layers.0 (Conv2d)`. No spans are made for levels that no subscriber enables. Times are those
/// of the host: a GPU works later, as [`profiler::profile`] shows. Operations inside an operation have spans of their
/// own.
///
/// Without this call, the feature costs nothing: an operation loads one atomic number, as it does without the feature.
///
/// # Errors
/// [`Error::Argument`](pagelock_tensor::Error::Argument) if such spans are made already, or another [`Observer`] was
/// given before.
///
/// # Examples
/// ```
/// use pagelock::prelude::*;
///
/// let spans = pagelock::tracing_spans()?;
/// Linear::new(3, 2)?.forward(&Tensor::ones([1, 3])?)?; // module, and in it operation
/// drop(spans);
/// # Ok::<(), pagelock::tensor::Error>(())
/// ```
pub fn tracing_spans() -> pagelock_tensor::Result<Observed> {
    profiler::observe(&Spans)
}

struct Spans;

/// One for each call of `begin`.
struct Begun {
    span: Option<EnteredSpan>, // none if no subscriber enables it
    is_open: bool,
}

thread_local! {
    /// The activities that this thread is in, outermost first.
    static BEGUN: RefCell<Vec<Begun>> = const { RefCell::new(Vec::new()) };
}

impl Observer for Spans {
    fn begin(&self, name: &str, category: Category) -> u64 {
        // A span's name is fixed in the source; what differs from call to call is a field.
        let span = match category {
            Category::Operation => trace_span!(target: "pagelock", "operation", name),
            Category::Backward => trace_span!(target: "pagelock", "backward", name),
            Category::ModuleCall => debug_span!(target: "pagelock", "module", name),
            Category::Loading => debug_span!(target: "pagelock", "loader", name),
            Category::OptimizerStep => debug_span!(target: "pagelock", "optimizer", name),
            _ => debug_span!(target: "pagelock", "user", name),
        };
        let span = (!span.is_disabled()).then(|| span.entered());
        BEGUN.with_borrow_mut(|all| {
            all.push(Begun { span, is_open: true });
            all.len() as u64 - 1
        })
    }

    fn end(&self, begun: u64) {
        let span = BEGUN.with_borrow_mut(|all| {
            let ended = all.get_mut(begun as usize)?;
            ended.is_open = false;
            let span = ended.span.take();
            let n_open = all.iter().rposition(|begun| begun.is_open).map_or(0, |last| last + 1);
            all.truncate(n_open);
            span
        });
        drop(span); // calls the subscriber
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::tracing_spans;
    use crate::prelude::*;

    /// Records spans up to a level: `module (Linear)` when one is made, `>` and `<` when it is entered and left.
    struct Notes {
        lines: &'static Mutex<Vec<String>>,
        ids: AtomicU64,
        most: Level,
    }

    struct Name(String);

    impl Visit for Name {
        fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
            self.0 = format!("{value:?}");
        }

        fn record_str(&mut self, _: &Field, value: &str) {
            self.0 = value.to_owned();
        }
    }

    impl Subscriber for Notes {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "pagelock" && *metadata.level() <= self.most
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let mut name = Name(String::new());
            span.record(&mut name);
            self.lines.lock().unwrap().push(format!("{} {}", span.metadata().name(), name.0));
            Id::from_u64(self.ids.fetch_add(1, Ordering::Relaxed) + 1)
        }

        fn enter(&self, _: &Id) {
            self.lines.lock().unwrap().push(">".to_owned());
        }

        fn exit(&self, _: &Id) {
            self.lines.lock().unwrap().push("<".to_owned());
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
    }

    /// The records of a subscriber with the level `most`, for a layer and its gradient.
    fn seen(most: Level) -> Vec<String> {
        let lines: &'static Mutex<Vec<String>> = Box::leak(Box::default());
        let model = Linear::new(3, 2).unwrap();
        let notes = Notes { lines, ids: AtomicU64::new(0), most };
        tracing::subscriber::with_default(notes, || {
            let spans = tracing_spans().unwrap();
            model.forward(&Tensor::ones([1, 3]).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
            drop(spans);
            model.forward(&Tensor::ones([1, 3]).unwrap()).unwrap(); // not reported any more
        });
        std::mem::take(&mut lines.lock().unwrap())
    }

    #[test]
    fn modules_operations_and_derivatives_are_spans_that_nest() {
        let all = seen(Level::TRACE);
        assert!(all.contains(&"backward sum".to_owned()), "{all:?}");
        let at =
            |line: &str| all.iter().position(|seen| seen == line).unwrap_or_else(|| panic!("no {line} in {all:?}"));
        let depth = |at: usize| {
            let signs = all[..at].iter();
            signs.map(|line| i32::from(line == ">") - i32::from(line == "<")).sum::<i32>()
        };
        assert_eq!(depth(at("operation linear")), depth(at("module (Linear)")) + 1);
        assert_eq!(depth(all.len()), 0);

        let modules = seen(Level::DEBUG);
        assert_eq!(modules, ["module (Linear)", ">", "<"]);
    }
}
