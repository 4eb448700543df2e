//! Meshes and clouds of points.

use crate::array::{Array, ToArray};
use crate::error::{Result, ensure, refuse};
use crate::proto::{FLOAT, MeshPlugin, Tensor, TensorShape, Value};
use crate::step::Step;
use crate::writer::{SummaryWriter, check_tag};

/// Points in space, with optional colors and faces, for [`SummaryWriter::add_mesh`]. All arrays have the shape
/// `[meshes, points or faces, 3]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mesh<'a> {
    vertices: Array<'a>,
    colors: Option<Array<'a>>,
    faces: Option<Array<'a>>,
    config: String,
}

impl<'a> Mesh<'a> {
    /// Points without colors and faces, from their coordinates.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    pub fn new(vertices: &'a (impl ToArray + ?Sized)) -> Result<Self> {
        Ok(Self { vertices: vertices.to_array()?, colors: None, faces: None, config: "{}".to_owned() })
    }

    /// Red, green and blue of each point, from 0 to 255.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    pub fn colors(mut self, colors: &'a (impl ToArray + ?Sized)) -> Result<Self> {
        self.colors = Some(colors.to_array()?);
        Ok(self)
    }

    /// Triangles, each given by the indices of its three points.
    ///
    /// # Errors
    /// The tensor's error, if it cannot be read.
    pub fn faces(mut self, faces: &'a (impl ToArray + ?Sized)) -> Result<Self> {
        self.faces = Some(faces.to_array()?);
        Ok(self)
    }

    /// Classes of THREE.js and their settings (camera, lights, material), as JSON.
    pub fn config(mut self, json: impl Into<String>) -> Self {
        self.config = json.into();
        self
    }
}

impl SummaryWriter {
    /// Adds meshes, or point clouds if there are no faces.
    ///
    /// # Errors
    /// As [`add_scalar`](Self::add_scalar); [`Error::Argument`](crate::Error::Argument) if shapes do not match or a
    /// face has an index that no point has.
    ///
    /// # Examples
    /// ```
    /// use pagelock_board::{Array, Mesh, SummaryWriter};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let writer = SummaryWriter::new(folder.path())?;
    /// let vertices = Array::new(&[0.0f32, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], [1, 3, 3])?;
    /// let faces = Array::new(&[0i64, 1, 2], [1, 1, 3])?;
    /// writer.add_mesh("triangle", &Mesh::new(&vertices)?.faces(&faces)?, 0)?;
    /// writer.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_mesh(&self, tag: &str, mesh: &Mesh<'_>, step: impl Into<Step>) -> Result<()> {
        check_tag(tag)?;
        check(tag, mesh)?;
        let parts =
            [("VERTEX", 1, Some(&mesh.vertices)), ("FACE", 2, mesh.faces.as_ref()), ("COLOR", 3, mesh.colors.as_ref())];
        let parts = parts.into_iter().filter_map(|(name, kind, array)| Some((name, kind, array?)));
        let components = parts.clone().map(|(_, kind, _)| 1 << kind).sum();
        let value = |(name, content_type, array): (&str, i32, &Array<'_>)| {
            let plugin = MeshPlugin {
                name: tag.to_owned(),
                content_type,
                json_config: mesh.config.clone(),
                shape: array.shape().iter().map(|&size| size as i32).collect(),
                components,
            };
            let (shape, floats) = (Some(TensorShape::new(array.shape())), array.to_f32()?);
            let tensor = Tensor { dtype: FLOAT, shape, floats, strings: Vec::new() };
            Ok(Value::of_plugin(format!("{tag}_{name}"), "mesh", &plugin, Some(tensor)))
        };
        self.add_values(self.main, parts.map(value).collect::<Result<_>>()?, step.into())
    }
}

fn check(tag: &str, mesh: &Mesh<'_>) -> Result<()> {
    let shape = mesh.vertices.shape();
    let [n_meshes, n_points, 3] = *shape else {
        refuse!("the vertices of `{tag}` have the shape {shape:?}, not [meshes, points, 3]");
    };
    ensure!(n_meshes * n_points > 0, "the mesh `{tag}` has no points");
    if let Some(colors) = &mesh.colors {
        let colors = colors.shape();
        ensure!(colors == shape, "the colors of `{tag}` have the shape {colors:?}, its vertices {shape:?}");
    }
    if let Some(faces) = &mesh.faces {
        let shape = faces.shape();
        let fits = shape.len() == 3 && shape[0] == n_meshes && shape[2] == 3;
        ensure!(fits, "the faces of `{tag}` have the shape {shape:?}, not [{n_meshes}, faces, 3]");
        let is_wrong = |point: &f64| point.fract() != 0.0 || !(0.0..n_points as f64).contains(point);
        let wrong = (0..faces.len()).map(|at| faces.f64(at)).find(is_wrong);
        ensure!(wrong.is_none(), "a face of `{tag}` names point {}; there are only {n_points}", wrong.unwrap_or(0.0));
    }
    Ok(())
}
