//! Errors of readers about the content of files.

use pagelock_data::Error;

/// What the error says is wrong, without the name of the file.
pub(crate) fn problem<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(Error::Content { problem, .. }) => {
            problem.strip_prefix("cannot be used: ").expect("an error of this crate's readers").to_owned()
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("the file was accepted"),
    }
}
