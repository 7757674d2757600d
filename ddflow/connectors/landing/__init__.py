"""Files that land in a folder or a bucket, as a source."""
