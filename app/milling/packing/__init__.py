"""From ids of documents to blocks: the packings, and what each makes of a document by itself."""
