from cxlemu.cli import main

main(prog_name="cxlemu")
