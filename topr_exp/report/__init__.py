"""A page, figures and tables from run folders; reads files only."""
