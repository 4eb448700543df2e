//! The derive macro behind pagelock-nn's Module.
