//! The reading side, used by tools: copies a page word by word, believes nothing, then computes.
