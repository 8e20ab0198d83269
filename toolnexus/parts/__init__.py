"""Parts of a prompt or a result: texts, images, files, audio, and where they come from."""
