use pagelock_data::PinMemory;

#[derive(PinMemory)]
union Batch {
    whole: i64,
    parts: [i32; 2],
}

fn main() {}
