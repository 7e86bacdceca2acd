"""Where samples come from: files, folders and hub data sets as one stream of raw rows."""
