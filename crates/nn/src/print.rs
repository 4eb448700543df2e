//! Printing a model as PyTorch's `print(model)` does.

use crate::Module;
use crate::module::VisitEvent;
use crate::walk::{Of, Visit, walk};
use std::fmt;

/// The tree of a module's layers, ready to be displayed. Made by [`print()`].
#[derive(Debug, PartialEq)]
pub struct Tree {
    name: String,
    title: String,
    details: String,
    children: Vec<Tree>,
}

/// The module as text, as PyTorch's `print(model)` writes it.
///
/// Structs that derive [`Module`] have this as their `Display`.
///
/// ```
/// use pagelock_nn::{Linear, ReLU, Sequential};
///
/// let model = Sequential::new((Linear::new(784, 32)?, ReLU));
/// assert_eq!(model.to_string(), "\
/// Sequential(
///   (0): Linear(in_features=784, out_features=32, bias=True)
///   (1): ReLU()
/// )");
/// # Ok::<(), pagelock_tensor::Error>(())
/// ```
pub fn print<M: Module + ?Sized>(module: &M) -> Tree {
    tree(&Of(module), module.title(), module.details())
}

fn tree(visit: Visit<'_>, title: String, details: String) -> Tree {
    let mut open = vec![Tree::new("", title, details)];
    walk(visit, &mut |_, event| match event {
        VisitEvent::Enter { name, module } => open.push(Tree::new(name, module.title(), module.details())),
        VisitEvent::Leave => {
            if let (Some(child), Some(parent)) = (open.pop(), open.last_mut())
                && !child.title.is_empty()
            {
                parent.children.push(child);
            }
        }
        _ => {}
    });
    open.remove(0)
}

impl Tree {
    fn new(name: &str, title: String, details: String) -> Self {
        Self { name: name.to_owned(), title, details, children: Vec::new() }
    }

    /// Each child as `(name): text`; equal neighbors in a list share a line, `(0-3): 4 x ReLU()`.
    fn entries(&self) -> Vec<String> {
        let mut entries: Vec<(&str, &str, usize, String)> = Vec::new(); // first name, last name, count, text
        for child in &self.children {
            let text = child.to_string();
            match entries.last_mut() {
                Some((_, last, count, same)) if self.title == "ModuleList" && *same == text => {
                    *last = &child.name;
                    *count += 1;
                }
                _ => entries.push((&child.name, &child.name, 1, text)),
            }
        }
        let line = |(first, last, count, text): (&str, &str, usize, String)| match count {
            1 => format!("({first}): {text}"),
            _ => format!("({first}-{last}): {count} x {text}"),
        };
        entries.into_iter().map(line).collect()
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.children.is_empty() && !self.details.contains('\n') {
            return write!(f, "{}({})", self.title, self.details);
        }
        writeln!(f, "{}(", self.title)?;
        let details = (!self.details.is_empty()).then(|| self.details.clone());
        for entry in details.into_iter().chain(self.entries()) {
            writeln!(f, "  {}", entry.replace('\n', "\n  "))?;
        }
        f.write_str(")")
    }
}
