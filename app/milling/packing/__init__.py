"""From ids of documents to blocks: one module for each packing, and the plain packings that they equal."""
