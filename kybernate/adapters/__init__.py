"""One module per outside system; each translates foreign errors into ours."""
