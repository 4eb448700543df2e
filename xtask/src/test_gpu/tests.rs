//! Tests of reading cargo's messages, and of `run.sh` with short shell scripts in place of test programs.

use super::*;

#[test]
fn only_programs_with_tests_are_taken_from_cargos_messages() {
    let messages = [
        r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"name":"a"},"profile":{"test":false},"executable":null}"#,
        r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"name":"tool"},"profile":{"test":false},"executable":"/t/tool"}"#,
        r#"{"reason":"compiler-artifact","manifest_path":"/p/a/Cargo.toml","target":{"name":"it"},"profile":{"test":true},"executable":"/t/it-1"}"#,
        r#"{"reason":"build-finished","success":true}"#,
    ];

    let binaries = test_binaries(&messages.join("\n")).unwrap();

    assert_eq!(binaries, [TestBinary { name: "a-it".to_owned(), path: "/t/it-1".to_owned() }]);
}

#[test]
fn examples_that_check_themselves_are_told_by_their_names() {
    let messages = [
        r#"{"reason":"compiler-artifact","target":{"name":"budgets"},"executable":"/t/examples/budgets"}"#,
        r#"{"reason":"compiler-artifact","target":{"name":"pagelock"},"executable":null}"#,
        r#"{"reason":"compiler-artifact","target":{"name":"models_vae"},"executable":"/t/examples/models_vae"}"#,
    ];

    let found = examples(&messages.join("\n")).unwrap();

    assert_eq!(found, [TestBinary { name: "models_vae".to_owned(), path: "/t/examples/models_vae".to_owned() }]);
}

#[test]
fn an_example_counts_as_a_test() {
    let sh = Shell::new().unwrap();
    let folder = sh.create_temp_dir().unwrap();
    let script = folder.path().join("run.sh");
    sh.write_file(&script, RUN).unwrap();
    let programs =
        [("tests/cuda-it", HAS_GPU.1), ("examples/good", "test \"$1\" = --quick"), ("examples/bad", "exit 3")];
    for (name, body) in programs {
        let path = folder.path().join(name);
        sh.write_file(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        cmd!(sh, "chmod +x {path}").quiet().run().unwrap();
    }

    let output = cmd!(sh, "sh {script}").quiet().ignore_status().output().unwrap();

    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().last(), Some("test-gpu: 6 passed, 1 failed, 1 skipped"));
    assert!(!output.status.success());
}

#[test]
fn what_is_no_message_is_named() {
    let error = test_binaries("warning: unused").unwrap_err();

    assert_eq!(error.to_string(), "not a message of cargo: warning: unused");
}

/// Makes a bundle of shell scripts with these names and bodies, runs it, and returns whether it succeeded and its
/// last line.
fn run_bundle(programs: &[(&str, &str)]) -> (bool, String) {
    let sh = Shell::new().unwrap();
    let folder = sh.create_temp_dir().unwrap();
    let script = folder.path().join("run.sh");
    sh.write_file(&script, RUN).unwrap();
    for (name, body) in programs {
        let path = folder.path().join("tests").join(name);
        sh.write_file(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        cmd!(sh, "chmod +x {path}").quiet().run().unwrap();
    }
    let output = cmd!(sh, "sh {script}").quiet().ignore_status().output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), printed.lines().last().unwrap_or_default().to_owned())
}

const HAS_GPU: (&str, &str) = ("cuda-it", "echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured'");

#[test]
fn the_last_line_counts_over_all_programs_and_a_test_that_says_it_was_skipped_has_not_passed() {
    let other = ("other", "echo 'SKIPPED: one device'; echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0'");

    let (succeeded, last) = run_bundle(&[HAS_GPU, other]);

    assert_eq!(last, "test-gpu: 7 passed, 0 failed, 2 skipped");
    assert!(succeeded);
}

#[test]
fn a_program_that_ends_without_a_result_counts_as_failed() {
    let (succeeded, last) = run_bundle(&[HAS_GPU, ("other", "exit 139")]);

    assert_eq!(last, "test-gpu: 5 passed, 1 failed, 1 skipped");
    assert!(!succeeded);
}

#[test]
fn failed_tests_are_counted_once_although_their_program_fails_too() {
    let failing = ("other", "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured'; exit 101");

    let (succeeded, last) = run_bundle(&[HAS_GPU, failing]);

    assert_eq!(last, "test-gpu: 6 passed, 2 failed, 1 skipped");
    assert!(!succeeded);
}

#[test]
fn without_a_gpu_it_says_what_is_missing_and_runs_nothing() {
    let (succeeded, last) =
        run_bundle(&[("cuda-it", "echo 'REQUIRE_GPU=1, but CUDA is not available: no driver'; exit 101")]);

    assert_eq!(last, "test-gpu: cannot run: CUDA is not available: no driver");
    assert!(!succeeded);
}
