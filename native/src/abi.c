#include "abi.h"

uint32_t vespiary_abi(void)
{
    return VESPIARY_ABI;
}
