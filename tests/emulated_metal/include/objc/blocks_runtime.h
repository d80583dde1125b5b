// GNUstep looks for this name when blocks are on; libBlocksRuntime calls it Block.h.
#include <Block.h>
