//! A curve, a histogram and a grid of pictures for TensorBoard.
use pagelock_board::{Array, GridOptions, Result, SummaryWriter, make_grid};

fn main() -> Result<()> {
    let writer = SummaryWriter::new("runs/first")?;
    for step in 0..10 {
        writer.add_scalar("loss", 0.9f64.powi(step), step)?;
        writer.add_histogram("weights", &[0.1f32, -0.2, 0.3], step)?;
    }
    let digits = vec![0.5f32; 16 * 28 * 28];
    let grid = make_grid(&Array::new(&digits, [16, 1, 28, 28])?, GridOptions::default())?;
    writer.add_image("digits", &grid, 0)?;
    println!("a picture of {:?} in {}", grid.shape(), writer.log_dir().display());
    writer.close()
}
